"""Panels: one function each, from the configuration to a panel of Grafana's SDK."""
