"""The doctor on a real pair: each delay that the lab injects is named by its rule, an ordinary load has no finding."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.doctor import diagnose, gather
from analysis.run import Run, find_run
from analysis.source import TABLE, Session
from lab.run import Pair
from lab.workload import Workload

pytestmark = pytest.mark.engine

# Site of a delay (ms) -> the rule that must name it. Prompts of 400 tokens take about 120 ms on P.
PUSH = {
    "none": (0, None), "registration": (400, "slow-registration"), "dispatch": (300, "slow-dispatch"),
    "router_decode_leg": (500, "legs-in-sequence"), "completion": (300, "completion-lag"), "post": (300, "slow-post"),
}  # fmt: skip
PULL = {
    "none": (0, None), "router_dispatch": (300, "slow-router"), "decode_admission": (300, "decode-admission"),
    "dispatch": (300, "slow-dispatch"), "completion": (300, "completion-lag"), "post": (300, "slow-post"),
}  # fmt: skip
REQUESTS = 6
SETTLE_S = 3.0


class Part:
    """The requests of one workload of a run, by the prefix of their ids."""

    lines = bad_lines = 0

    def __init__(self, whole: Session, run: Run, prefix: str) -> None:
        self.run = Run(run.name, run.files, run.manifest)
        self._whole = whole
        condition = f"startsWith(SpanAttributes[\\'kv_transfer.request_key\\'], \\'{prefix}-\\')"
        whole._database.query(f"SET additional_table_filters = {{'{TABLE}': '{condition}'}}")

    def query(self, name: str, **params: Any) -> Any:
        return self._whole.query(name, **params)


def drive(pair: Pair, faults: dict[str, tuple[int, str | None]]) -> None:
    pair.warm_up((400,), count=2)
    for site, (ms, _) in faults.items():
        pair.set_faults({site: ms} if ms else {})
        pair.run_workload(
            Workload(requests=REQUESTS, concurrency=1, input_lens=(400,), output_len=4, id_prefix=f"{site}-x")
        )
    pair.clear_faults()
    time.sleep(SETTLE_S)


def diagnose_parts(out: Path, sites: list[str]) -> dict[str, list[str]]:
    run = find_run([out])
    with Session(run) as whole:
        found = {site: diagnose(gather(Part(whole, run, f"{site}-x"))) for site in sites}  # type: ignore[arg-type]
        whole._database.query("SET additional_table_filters = {}")
    return {site: [finding.rule for finding in findings] for site, findings in found.items()}


def test_injected_delays_are_named(shared_pair: Pair, report: Callable[[str], None]) -> None:
    mode, faults = shared_pair.mode, {"push": PUSH, "pull": PULL}[shared_pair.mode]
    drive(shared_pair, faults)
    found = diagnose_parts(shared_pair.out, list(faults))
    for site, rules in found.items():
        report(f"doctor, {mode}, delay at {site}: {', '.join(rules) or 'no finding'}")
    wrong = {site: rules for site, rules in found.items() if rules != ([faults[site][1]] if faults[site][1] else [])}
    assert not wrong, wrong
