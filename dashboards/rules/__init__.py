"""Recording and alerting rules of Prometheus."""
