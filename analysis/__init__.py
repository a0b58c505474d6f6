"""Turn span files into answers: SQL over `otel_traces`, small transforms, renderers and the `kvlens` command."""
