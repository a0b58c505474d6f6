"""`make bench`, or `python -m benchmarks [NAME...]`: print every benchmark's figures, or those of the named ones."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from . import __path__ as folder
from .measure import describe_machine

# A benchmark is a module here with a `run()` that prints; these are not.
HELPERS = {"__main__", "lab_runs", "live", "measure"}


def main(names: list[str]) -> int:
    known = sorted(module.name for module in pkgutil.iter_modules(folder) if module.name not in HELPERS)
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    print(f"conditions: {describe_machine()}")
    for name in names or known:
        module = importlib.import_module(f"benchmarks.{name}")
        print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}")
        module.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
