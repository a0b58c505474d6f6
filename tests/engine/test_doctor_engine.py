"""The doctor on a real pair: each delay that the lab injects is named by its rule, an ordinary load has no finding."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.doctor import diagnose, gather
from analysis.source import open_session
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


def take_part(whole: Path, prefix: str, part: Path) -> Path:
    """Write the spans of the requests whose ids begin with a prefix as a run of their own."""
    (part / "traces").mkdir(parents=True)
    shutil.copy(whole / "manifest.json", part)
    for file in (whole / "traces").glob("*.jsonl"):
        with (part / "traces" / file.name).open("w", encoding="utf-8") as out:
            for line in file.read_text(encoding="utf-8").splitlines():
                document = json.loads(line)
                for resource in document["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        scope["spans"] = [span for span in scope["spans"] if belongs(span, prefix)]
                out.write(json.dumps(document) + "\n")
    return part


def belongs(span: dict[str, Any], prefix: str) -> bool:
    keys = [pair["value"] for pair in span.get("attributes", []) if pair["key"] == "kv_transfer.request_key"]
    return any(str(key.get("stringValue", "")).startswith(prefix) for key in keys)


def drive(pair: Pair, faults: dict[str, tuple[int, str | None]]) -> None:
    pair.warm_up((400,), count=2)
    for site, (ms, _) in faults.items():
        pair.set_faults({site: ms} if ms else {})
        pair.run_workload(
            Workload(requests=REQUESTS, concurrency=1, input_lens=(400,), output_len=4, id_prefix=f"{site}-x")
        )
    pair.clear_faults()
    time.sleep(SETTLE_S)


def diagnose_parts(out: Path, sites: list[str], scratch: Path) -> dict[str, list[str]]:
    found = {}
    for site in sites:
        with open_session([take_part(out, f"{site}-x", scratch / site)]) as session:
            found[site] = [finding.rule for finding in diagnose(gather(session))]
    return found


def test_injected_delays_are_named(shared_pair: Pair, tmp_path: Path, report: Callable[[str], None]) -> None:
    mode, faults = shared_pair.mode, {"push": PUSH, "pull": PULL}[shared_pair.mode]
    drive(shared_pair, faults)
    found = diagnose_parts(shared_pair.out, list(faults), tmp_path)
    for site, rules in found.items():
        report(f"doctor, {mode}, delay at {site}: {', '.join(rules) or 'no finding'}")
    wrong = {site: rules for site, rules in found.items() if rules != ([faults[site][1]] if faults[site][1] else [])}
    assert not wrong, wrong
