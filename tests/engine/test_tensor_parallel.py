"""Two ranks on each engine: two transfers per request, the slowest decides, nothing is pooled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pairs import budgets_of, median_of, read_spans, references, tokens_of
from scrapes import read_metrics, scrape, wait_for_agreement

from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

LOAD = Workload(requests=6, concurrency=1, input_lens=(300,), output_len=4, seed=6, id_prefix="ranks")
DELAY_MS = 400.0


@pytest.fixture(scope="module")
def pair(start_pair: Callable[..., Pair]) -> Iterator[Pair]:
    running = start_pair("pull", tp=2)
    running.warm_up(LOAD.input_lens, count=2)
    yield running
    running.stop()


def test_two_ranks_two_transfers(pair: Pair) -> None:
    records = pair.run_workload(LOAD)
    assert tokens_of(records) == references(pair, LOAD)
    rows = budgets_of(pair, records)
    wires = [span for span in read_spans(pair.out) if span["name"] == "wire"]
    for row in rows:
        mine = [span for span in wires if span["request_id"] == row["decode_request_id"]]
        assert sorted(span["rank"] for span in mine) == ["0", "1"]
        # Bytes are those of one rank, not of both.
        assert row["bytes"] in {int(span["bytes"]) for span in mine}
        assert row["ranks"] == 2


def test_a_slow_rank_slows_the_request_by_that_much(pair: Pair, report: Callable[[str], None]) -> None:
    rows: dict[str, list[Any]] = {"a": [], "b": []}
    for turn in range(4):
        for kind, faults in (("a", {}), ("b", {"wire": {"ms": DELAY_MS, "engine": "decode", "rank": 1}})):
            pair.set_faults(faults)
            time.sleep(0.1)
            load = Workload(requests=1, input_lens=(300,), output_len=3, seed=50 + turn, id_prefix=f"slow-{kind}{turn}")
            rows[kind].extend(pair.run_workload(load))
    pair.clear_faults()
    found = budgets_of(pair, rows["a"] + rows["b"])
    plain, delayed = found[:4], found[4:]
    moved = median_of(delayed, "segments", "wire") - median_of(plain, "segments", "wire")
    report(f"tensor parallel 2: {DELAY_MS:.0f} ms on rank 1's transfer -> wire {moved:+.1f} ms, slowest rank "
           f"{sorted({row['slowest_rank'] for row in delayed})}")  # fmt: skip
    assert moved == pytest.approx(DELAY_MS, abs=max(0.1 * DELAY_MS, 5.0))
    assert all(int(row["slowest_rank"]) == 1 for row in delayed)


def test_metrics_count_both_ranks_and_charge_the_slowest(pair: Pair) -> None:
    assert wait_for_agreement(pair) == []
    found = read_metrics(scrape(pair.decode))
    ranks: dict[str, list[tuple[float, float]]] = {}
    for span in read_spans(pair.out):
        if span["name"] == "wire":
            ranks.setdefault(span["request_id"], []).append((span["begin"] / 1e6 + span["ms"], span["ms"]))
    assert sum(found["kvlens_segment_seconds", ("pull", "wire")][1:]) == sum(map(len, ranks.values())) == 2 * len(ranks)
    # The rank that was done last is charged; where both were done at about the same time, either of them.
    last = [[ms for end, ms in ends if end > max(ends)[0] - 5] for ends in ranks.values()]
    charged = found["kvlens_handover_seconds_total", ("pull", "transfer")] * 1000
    assert 0.99 * sum(map(min, last)) <= charged <= 1.01 * sum(map(max, last))
    assert ("kvlens_handover_seconds_total", ("pull", "unattributed")) not in found
    # Both ranks had to say it.
    assert sum(read_metrics(scrape(pair.prefill))["kvlens_lease_seconds", ("read",)][1:]) == len(ranks)
