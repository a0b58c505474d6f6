"""P and D live as if on other hosts with wrong clocks: all is served, and the analysis finds what it was not told.

The measure is the same run put right by the truth (lab/true_clocks.py), analysed as of one host.
`python -m benchmarks wrong_clocks` prints more, and medians of runs without wrong clocks beside.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pairs import read_spans

from analysis.cli import main
from analysis.clocks import correct
from analysis.compare.conditions import diff_conditions
from benchmarks.wrong_clocks import CLOCKS, measure_pairs, measure_segments, open_breakdown, restore
from lab.host_clock import parse_clock
from lab.replay import replay_prompts
from lab.run import Pair
from lab.true_clocks import TrueClocks, read_hosts
from lab.workload import Workload

pytestmark = pytest.mark.engine

LOAD = Workload(requests=40, rate=2.0, input_lens=(64, 300, 700), output_len=6, seed=17, id_prefix="apart")
LOADS = {"push": LOAD, "pull": LOAD, "bidirectional": replace(LOAD, requests=14, rate=0.7, turns=3)}
# Push has every kind of message but one; each start costs most of a minute.
MODES = ["push", *(pytest.param(mode, marks=pytest.mark.soak) for mode in ("pull", "bidirectional"))]


@dataclass(frozen=True)
class Served:
    """A finished run with wrong clocks: its directory, its records, the tokens that one engine alone makes of each."""

    mode: str
    out: Path
    records: list[dict[str, Any]]
    alone: dict[str, list[int]]


@pytest.fixture(scope="module", params=MODES)
def served(request: pytest.FixtureRequest, start_pair: Callable[..., Pair]) -> Served:
    load = LOADS[request.param]
    pair = start_pair(request.param, clocks=CLOCKS)
    pair.warm_up(load.input_lens)
    records = pair.run_workload(load)
    prompts = replay_prompts(load, records)
    alone = {name: pair.generate(prompt, load.output_len) for name, prompt in prompts.items()}
    # Also exports what still waits in the engines.
    pair.stop()
    return Served(request.param, pair.out, records, alone)


@pytest.fixture(scope="module")
def restored(served: Served) -> Path:
    return restore(served.out)


def test_all_is_served_and_no_lease_expires_for_the_clocks(served: Served) -> None:
    load = LOADS[served.mode]
    assert [record["error"] for record in served.records] == [None] * load.requests * load.turns
    assert {record["request_id"]: record["tokens"] for record in served.records} == served.alone
    spans = read_spans(served.out)
    leases = [span for span in spans if span["name"] == "lease"]
    assert len(leases) >= len(served.records)
    assert not {span["outcome"] for span in leases} & {"expired", "aborted"}
    assert not [span for span in spans if span["name"] in ("failure", "validation")]
    assert not [log for log in (served.out / "logs").glob("*-*.log") if "expired KV blocks" in log.read_text()]
    if served.mode == "bidirectional":
        # What D says of its blocks' expiry is in its own clock, which is days away from P's.
        reasons = {span["reason"] for span in spans if span["name"] == "decision"}
        assert "fetched" in reasons
        assert "expired" not in reasons


def test_manifest_tells_the_truth_and_a_comparison_names_it(served: Served) -> None:
    manifest = json.loads((served.out / "manifest.json").read_text())
    hosts = read_hosts(manifest)
    asked = {engine: parse_clock(clock) for engine, clock in CLOCKS.items()}
    assert {engine: (host.offset_ms, host.drift_ppm) for engine, host in hosts.items()} == {
        engine: (clock.offset_ms, clock.drift_ppm) for engine, clock in asked.items()
    }
    assert set(TrueClocks(served.out).boots) > {host.boot_id for host in hosts.values()}
    plain = {**manifest, "engines": [{**engine, "clock": None} for engine in manifest["engines"]]}
    changed = {difference.key for difference in diff_conditions(plain, manifest)}
    assert changed == {
        f"engines.{role}0.clock.{part}" for role in ("prefill", "decode") for part in ("offset_ms", "drift_ppm")
    }


def test_the_truth_is_inside_every_interval(served: Served, report: Callable[[str], None]) -> None:
    pairs = measure_pairs(served.out)
    assert len(pairs) == 3  # router, P, D
    found = run_clocks(served.out)
    summary = found["clocks"]
    assert (summary["impossible_orders"], summary["jumps"], summary["unrelated_pairs"]) == (0, 0, 0)
    inside, moments = sum(pair.inside for pair in pairs), sum(pair.moments for pair in pairs)
    wide = ", ".join(f"{pair.width_ms:.1f}" for pair in pairs)
    far = max(abs(pair.true_ms) for pair in pairs)
    report(
        f"{served.mode}: clocks up to {far:.0f} ms and 100 ppm apart: truth inside at {inside} of {moments} moments"
        f" of {len(pairs)} pairs; widths {wide} ms"
    )
    assert inside == moments
    # As printed: in the middle of the run, of wall clocks.
    printed = sorted(abs(pair["offset_ms"]) for pair in found["pairs"])
    for shown, pair in zip(printed, sorted(pairs, key=lambda one: abs(one.true_ms)), strict=True):
        assert shown == pytest.approx(abs(pair.true_ms), abs=pair.widest_ms)


def run_clocks(run: Path) -> dict[str, Any]:
    result = CliRunner().invoke(main, ["clocks", str(run), "--json"], catch_exceptions=False)
    document: dict[str, Any] = json.loads(result.output)
    return document


def test_segments_are_those_of_one_host_within_the_published_uncertainty(
    served: Served, restored: Path, report: Callable[[str], None]
) -> None:
    found, true = open_breakdown(served.out), open_breakdown(restored)
    assert true.summary["clocks"] is None
    assert found.budgets.height == len(served.records)
    segments = measure_segments(found, true)
    crossing = [one for one in segments if one.published_ms > 0]
    report(
        f"{served.mode}: segments of {len(served.records)} requests against the truth, error at most within published"
        f" median (ms): {'; '.join(f'{one.name} {one.worst_ms:.2f} within {one.published_ms:.1f}' for one in crossing)}"
    )
    assert [one for one in segments if one.beyond] == []
    assert {"prefill_ingress", "delivery", "completion_lag" if served.mode == "push" else "handoff_dispatch"} <= {
        one.name for one in crossing
    }


def test_a_wrong_correction_would_be_seen(served: Served, restored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the offset left in, and segments between clocks are off by more than published."""
    stock = correct.find_shifts

    def find_shifts(relation: Any, boots: Any, at: Any) -> tuple[np.ndarray, np.ndarray]:
        shift, rate = stock(relation, boots, at)
        return shift * 9 // 10, rate

    monkeypatch.setattr(correct, "find_shifts", find_shifts)
    segments = measure_segments(open_breakdown(served.out), open_breakdown(restored))
    assert sum(one.beyond for one in segments) >= len(served.records) // 2
