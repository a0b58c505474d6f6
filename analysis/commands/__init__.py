"""Sub-commands, one per file, found through the entry-point group `kvlens.commands`."""
