"""Draw the dashboards without a Grafana: each panel's real query result, in its place, in one HTML file per board."""
