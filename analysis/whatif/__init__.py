"""Replay a recorded run through an event model of another arrangement of the same engines (docs/what-if.md)."""
