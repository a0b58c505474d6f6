"""Figures with their spread and conditions; not timed tests."""
