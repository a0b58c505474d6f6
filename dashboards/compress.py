"""The rules in fast motion: every duration of a rules file divided, names and expressions as they are.

A lab has minutes where a fleet has hours. With a factor of 30 the five-minute window becomes 10 s, the hour 2 min, a
`for` of ten minutes 20 s. Names of recorded series keep `rate5m`, so that the dashboards find them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600}
# A range, an offset, and the two keys of a rules file that hold a duration.
_DURATION = re.compile(r"(\[|\boffset |\bfor: |\binterval: )(\d+)([smh])(?![\w])")


def compress(text: str, factor: float) -> str:
    """Return an expression or a rules file with its durations divided by `factor`, to a whole second of at least 1."""
    if factor == 1:
        return text
    return _DURATION.sub(lambda match: match[1] + shorten(match[2] + match[3], factor), text)


def shorten(duration: str, factor: float) -> str:
    """Return a duration such as 5m divided by `factor`, in seconds; 0 stays 0."""
    seconds = int(duration[:-1]) * _SECONDS[duration[-1]] / factor
    return f"{max(1, round(seconds)) if seconds else 0}s"
