"""Renderers, one output per file; they take plain results and give text."""
