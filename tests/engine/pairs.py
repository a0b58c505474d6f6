"""What the engine tests share: budgets of a running pair, token references, percentiles."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.source import open_session
from lab.run import Pair
from lab.workload import Workload, plan

# Assembler (0.2 s), batch processor (0.5 s in the lab) and file, with room for a busy machine.
SETTLE_S = 20.0
# Of the pair that most tests share: short enough that one of them can wait for an expiry.
LEASE_S = 8


def read_document(out: Path) -> dict[str, Any]:
    """Return the `breakdown --json` document of a run, through the code that the command uses."""
    with open_session([out]) as session:
        return render_document(break_down(session))


def wait_for_document(out: Path, complete: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Read the run until its spans are all exported; return the last document in any case."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        time.sleep(1.0)
        document = read_document(out)
        if complete(document) or time.monotonic() > deadline:
            return document


def budgets_of(pair: Pair, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the budget of every record, in the records' order."""
    wanted = [record["request_id"] for record in records]

    def complete(document: dict[str, Any]) -> bool:
        found = {request["request_key"]: request for request in document["requests"]}
        return all(key in found and found[key]["segments"].get("first_decode") is not None for key in wanted)

    document = wait_for_document(pair.out, complete)
    found = {request["request_key"]: request for request in document["requests"]}
    assert set(wanted) <= set(found), f"no budget for {set(wanted) - set(found)}"
    return [found[key] for key in wanted]


def references(pair: Pair, workload: Workload, engine: str = "decode") -> list[list[int]]:
    """Return the greedy tokens of every request of a workload, made by one engine alone."""
    return [pair.generate(request.prompt, workload.output_len, engine) for request in plan(workload)]


def tokens_of(records: Iterable[dict[str, Any]]) -> list[list[int]]:
    return [record["tokens"] for record in sorted(records, key=lambda record: record["request_id"])]


def percentile(values: Iterable[float], share: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_of(rows: Iterable[dict[str, Any]], part: str, name: str) -> float:
    return statistics.median((row[part].get(name) or 0.0) for row in rows)


def read_spans(out: Path) -> list[dict[str, Any]]:
    """Return every complete span of a run: name, trace, engine and kvlens attributes."""
    spans = []
    for file in sorted((out / "traces").glob("*.jsonl")):
        for line in file.read_text().splitlines():
            try:
                document = json.loads(line)
            except ValueError:
                continue
            for resource in document["resourceSpans"]:
                about = _attributes(resource["resource"]["attributes"])
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        spans.append(_span(span, about))
    return spans


def _span(span: dict[str, Any], about: dict[str, str]) -> dict[str, Any]:
    return {
        "name": span["name"], "trace": span["traceId"], "engine": about["service.instance.id"],
        "role": about["kvlens.role"], "ms": (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) / 1e6,
        "begin": int(span["startTimeUnixNano"]),
        **{key.removeprefix("kv_transfer."): value for key, value in _attributes(span.get("attributes", [])).items()},
    }  # fmt: skip


def _attributes(pairs: list[dict[str, Any]]) -> dict[str, str]:
    return {pair["key"]: str(next(iter(pair["value"].values()))) for pair in pairs}
