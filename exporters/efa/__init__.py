"""Hardware counters of EFA devices: read from sysfs, exported for Prometheus, sampled into a run."""
