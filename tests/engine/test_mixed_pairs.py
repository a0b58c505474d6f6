"""One side stock, the other instrumented: all is served, tokens are equal, the missing half is said to be missing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pairs import read_spans, references, tokens_of, wait_for_document

from lab.run import Pair
from lab.start_method import ENV_METHOD
from lab.workload import Workload

pytestmark = pytest.mark.engine

LAST = Workload(requests=2, input_lens=(64,), output_len=4, seed=9, id_prefix="last")
LOAD = Workload(requests=8, concurrency=3, input_lens=(64, 700), output_len=6, seed=5, id_prefix="mixed")


# Every change shows a stock peer on either side, the soak the other two pairs. One pair spawns its processes, as
# vLLM does on CPU outside the lab: the end of a spawned process is another than that of a forked one.
SPAWNS = "push-p"
HALVES = ["pull-d", SPAWNS, *(pytest.param(half, marks=pytest.mark.soak) for half in ("pull-p", "push-d"))]


@pytest.fixture(scope="module", params=HALVES)
def half(request: pytest.FixtureRequest, start_pair: Callable[..., Pair]) -> Iterator[tuple[Pair, str]]:
    mode, stock = request.param.split("-")
    running = start_pair(mode, stock=stock, env={ENV_METHOD: "spawn"} if request.param == SPAWNS else {})
    running.warm_up(LOAD.input_lens)
    yield running, {"p": "prefill", "d": "decode"}[stock]
    running.stop()


def test_served_equal_and_honest(half: tuple[Pair, str], report: Callable[[str], None]) -> None:
    pair, stock = half
    records = pair.run_workload(LOAD)
    assert [record["error"] for record in records] == [None] * LOAD.requests
    assert tokens_of(records) == references(pair, LOAD)

    def complete(document: dict[str, list[dict[str, object]]]) -> bool:
        return len(document["requests"]) == LOAD.requests

    document = wait_for_document(pair.out, complete)
    assert len(document["requests"]) == LOAD.requests
    for row in document["requests"]:
        assert row["missing"] == [stock]
        charged = [value for value in row["segments"].values() if value is not None]
        assert sum(charged) + row["residual_ms"] == pytest.approx(row["ttft_ms"], abs=1e-3)
    report(f"{pair.mode}: stock {stock}, instrumented peer: {LOAD.requests} of {LOAD.requests} served, tokens equal")


def test_nothing_is_lost_when_an_engine_ends(half: tuple[Pair, str]) -> None:
    pair, stock = half
    records = pair.run_workload(LAST)
    # At once: the spans of the last request still wait in the engine.
    pair.stop()
    root = {"prefill": "decode", "decode": "prefill"}[stock]
    exported = {span["request_key"] for span in read_spans(pair.out) if span["name"] == root}
    assert {record["request_id"] for record in records} <= exported
