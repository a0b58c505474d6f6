"""One or two runs as a single HTML file: charts drawn by a bundled Vega, no network, no prompts."""
