"""The rules in the lab: the fleet's expressions, time running thirty times as fast, limits of a pair on one machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dashboards.build import build
from dashboards.compress import compress, shorten
from dashboards.config import Config

FACTOR = 30
"""5 min are 10 s, an hour is 2 min, a `for` of 10 min is 20 s, groups are evaluated every second."""

LEASE_S = 5
# The writer's limit is half the lease, as on a fleet: blocks that wait longer than the lease are given away.
CONFIG = replace(Config(), lease_seconds=LEASE_S, stuck_seconds=4, writer_seconds=LEASE_S / 2)
WINDOW = shorten("5m", FACTOR)


def write_rules(folder: Path) -> list[str]:
    """Write the rules in fast motion and return their files' names."""
    names = []
    for path, text in build(CONFIG).items():
        if path.startswith("rules/"):
            name = path.rsplit("/", 1)[-1]
            (folder / name).write_text(compress(text, FACTOR), encoding="utf-8")
            names.append(name)
    return names
