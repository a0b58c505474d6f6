"""Cut the spans of one incident out of a kept run, as `since` and `until` do on ClickHouse.

python -m benchmarks.live.cut runs/live "late registration" runs/late-registration
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def cut(run: Path, incident: str, out: Path) -> int:
    """Write the spans that began in the last incident of this name to `out`; return how many there are."""
    phases = json.loads((run / "phases.json").read_text(encoding="utf-8"))["phases"]
    phase = [phase for phase in phases if phase["name"] == incident][-1]
    source = Path(phase["run"])
    (out / "traces").mkdir(parents=True, exist_ok=True)
    (out / "manifest.json").write_bytes((source / "manifest.json").read_bytes())
    count = 0
    for file in sorted((source / "traces").glob("*.jsonl")):
        with (out / "traces" / file.name).open("w", encoding="utf-8") as sink:
            for line in file.read_text(encoding="utf-8").splitlines():
                document = json.loads(line)
                kept = keep_between(document, phase["began"] * 1e9, phase["ended"] * 1e9)
                if kept:
                    count += kept
                    sink.write(json.dumps(document) + "\n")
    return count


def keep_between(document: dict[str, Any], start_ns: float, end_ns: float) -> int:
    """Leave only spans that began between two Unix times (ns) in an export request; return how many stay."""
    count = 0
    for resource in document["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            scope["spans"] = [span for span in scope["spans"] if start_ns <= int(span["startTimeUnixNano"]) <= end_ns]
            count += len(scope["spans"])
    return count


if __name__ == "__main__":
    print(cut(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])), "spans")
