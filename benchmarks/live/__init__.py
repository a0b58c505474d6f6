"""A real Prometheus beside real engines while faults are injected: the parts of `live_faults` and its engine test."""
