"""A real two-engine vLLM P/D pair on CPU through NIXL: engines, reference router, load generator, faults."""
