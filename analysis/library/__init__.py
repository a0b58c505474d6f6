"""The run library: run directories found by their conditions, headline figures and notes."""
