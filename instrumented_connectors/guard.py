"""The one guard around telemetry code: whatever fails in here, the engine goes on as if kvlens were not there.

`super()` calls never run inside the guard, so the host's own exceptions pass through unchanged.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import ParamSpec, TypeVar

logger = logging.getLogger("kvlens")

P = ParamSpec("P")
R = TypeVar("R")

errors: Counter[str] = Counter()
"""Failures swallowed so far in this process, by site."""


def report(site: str, error: BaseException) -> None:
    """Count a swallowed failure and log the first one of each site."""
    errors[site] += 1
    if errors[site] == 1:
        logger.warning(
            "kvlens: telemetry failed in %s (%s); the request goes on, further failures are only counted",
            site, type(error).__name__, exc_info=error,
        )  # fmt: skip
    # A test process must see our bugs; engines started by a test don't import pytest.
    if "pytest" in sys.modules and reraise_under_pytest:
        raise error


reraise_under_pytest = True


def guarded(function: Callable[P, R]) -> Callable[P, R | None]:
    """Decorate telemetry code: failures are counted, logged once and answered with None."""
    site = function.__qualname__

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            report(site, error)
            return None

    return call


class guard:
    """Context manager form of `guarded`."""

    def __init__(self, site: str) -> None:
        self.site = site

    def __enter__(self) -> None:
        return None

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        if isinstance(error, Exception):
            report(self.site, error)
            return True
        return False
