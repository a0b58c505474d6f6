from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

# `--import-mode=importlib` leaves test folders off the path; the helpers beside the tests are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

from lab.run import Pair


@pytest.fixture(scope="module")
def start_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Pair]]:
    """Start pairs that end with the module: two cores carry one pair at a time."""
    with ExitStack() as stack:

        def start(mode: str, **settings: Any) -> Pair:
            out = tmp_path_factory.mktemp(f"{mode}-run")
            return stack.enter_context(Pair(mode=mode, out=out, **settings))

        yield start


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the figures that the engine tests measured."""
    figures = getattr(pytest, "kvlens_figures", [])
    if figures:
        terminalreporter.section("measured on real engines")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture
def report() -> Callable[[str], None]:
    """Keep a line for the summary at the end of the run."""

    def keep(line: str) -> None:
        if not hasattr(pytest, "kvlens_figures"):
            pytest.kvlens_figures = []  # type: ignore[attr-defined]
        pytest.kvlens_figures.append(line)  # type: ignore[attr-defined]

    return keep
