from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

# `--import-mode=importlib` leaves test folders off the path; the helpers beside the tests are imported by name.
sys.path.insert(0, str(Path(__file__).parent))

from pairs import LEASE_S

from lab.run import Pair

# Files whose tests share a pair, in the order in which they leave the next one what it needs: step figures want a run
# without delays before them, the last one kills an engine.
SHARING = ("test_tpot_engine.py", "test_metrics_engine.py", "test_doctor_engine.py", "test_handover.py")


@pytest.fixture(scope="module")
def start_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Pair]]:
    """Start pairs that end with the module: two cores carry one pair at a time."""
    with ExitStack() as stack:

        def start(mode: str, **settings: Any) -> Pair:
            out = tmp_path_factory.mktemp(f"{mode}-run")
            return stack.enter_context(Pair(mode=mode, out=out, **settings))

        yield start


@pytest.fixture(scope="session", params=["pull", "push"])
def shared_pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """One pair a mode for all tests that need nothing special of it: a start costs half a minute."""
    out = tmp_path_factory.mktemp(f"shared-{request.param}")
    with Pair(mode=request.param, out=out, extra_config={"kv_lease_duration": LEASE_S}) as pair:
        pair.warm_up((48, 200, 700, 1500), count=2)
        yield pair


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the sharing tests last, mode by mode: their pair ends with the session, and two at a time are too many."""

    def place(item: pytest.Item) -> tuple[int, str, int]:
        if item.path.name not in SHARING or item.path.parent != Path(__file__).parent:
            return (0, "", 0)
        mode = getattr(item, "callspec").params.get("shared_pair", "")  # noqa: B009
        return (1, mode, SHARING.index(item.path.name))

    items.sort(key=place)


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
