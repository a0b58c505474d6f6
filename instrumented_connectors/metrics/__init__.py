"""Metrics of the hand-over: one table, an accumulator on the background thread, and vLLM's own path to `/metrics`."""
