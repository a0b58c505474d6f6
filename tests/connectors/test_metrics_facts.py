"""How long the scheduler side waits for what a worker says: it travels with steps, and a step may take seconds."""

from __future__ import annotations

import pytest

from instrumented_connectors.metrics.facts import LONGEST_WAIT_NS, WAIT_NS, WAIT_STEPS, Fact, FactBook

S = 1_000_000_000


@pytest.fixture
def waiting() -> tuple[FactBook, list[Fact | None]]:
    book, settled = FactBook(10), []
    book.wait("r", 0, settled.append)
    return book, settled


def pass_time(book: FactBook, seconds: range, steps_each: int) -> None:
    for second in seconds:
        book.steps += steps_each
        book.tick(second * S)


def test_quick_steps_before_a_long_one_do_not_end_the_wait(waiting: tuple[FactBook, list[Fact | None]]) -> None:
    """The facts are ready a second after the fetch failed; a step of ten seconds has begun by then."""
    book, settled = waiting
    book.steps += 2 * WAIT_STEPS
    pass_time(book, range(1, 11), steps_each=0)
    assert settled == []
    book.add({"r": Fact(reason="remote_unknown").encode()})
    assert [fact and fact.reason for fact in settled] == ["remote_unknown"]


def test_steps_that_bring_nothing_end_the_wait(waiting: tuple[FactBook, list[Fact | None]]) -> None:
    book, settled = waiting
    pass_time(book, range(1, WAIT_NS // S + WAIT_STEPS + 1), steps_each=1)
    assert settled == [None]


def test_an_engine_without_steps_waits_no_longer_than_the_bound(waiting: tuple[FactBook, list[Fact | None]]) -> None:
    book, settled = waiting
    pass_time(book, range(1, LONGEST_WAIT_NS // S + 1), steps_each=0)
    assert settled == []
    book.tick(LONGEST_WAIT_NS + 1)
    assert settled == [None]
