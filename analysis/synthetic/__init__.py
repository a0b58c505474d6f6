"""Seeded synthetic span sets with known ground truth, at the time scales of a P5en fleet; never a measurement."""
