"""Exporters of kvlens spans, found by OpenTelemetry's entry points and chosen with OTEL_TRACES_EXPORTER."""
