"""The sections of a report, one file each: add a file and it is found.

A section module has ORDER (place on the page), `build(report) -> Section | None` (None: nothing to say), and may have
`load(session) -> value`, called while a run is open; the value is report.runs[i].loaded[<module name>].
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType


@cache
def find_sections() -> tuple[tuple[str, ModuleType], ...]:
    """Find the section modules of this folder in page order."""
    modules = [(entry.name, import_module(f"{__name__}.{entry.name}")) for entry in iter_modules(__path__)]
    return tuple(sorted(modules, key=lambda pair: pair[1].ORDER))
