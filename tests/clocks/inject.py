"""Rewrite a recorded run as if some of its processes had run on other hosts, with clocks that are off."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path

UNIX_TIMES = 10**18
"""Attributes in ns above this are moments; below it they are lengths."""


def inject_clocks(source: Path, target: Path, clocks: dict[str, tuple[float, float]]) -> Path:
    """Copy a run; processes of a role in clocks get (offset ms, drift ppm) and a boot id of their own.

    The drift counts from the first request on.
    """
    (target / "traces").mkdir(parents=True)
    with (source / "client.jsonl").open() as lines:
        zero = int(json.loads(next(lines))["send_unix_ns"])
    for name in ("manifest.json", "client.jsonl"):
        shutil.copy(source / name, target / name)
    for path in sorted((source / "traces").glob("*.gz")):
        with gzip.open(path, "rt") as lines, gzip.open(target / "traces" / path.name, "wt") as out:
            for line in lines:
                out.write(json.dumps(_shift_line(json.loads(line), clocks, zero)) + "\n")
    return target


def _shift_line(request: dict, clocks: dict[str, tuple[float, float]], zero: int) -> dict:
    for resource in request["resourceSpans"]:
        attributes = {one["key"]: one["value"] for one in resource["resource"]["attributes"]}
        role = attributes["kvlens.role"]["stringValue"]
        if role not in clocks:
            continue
        offset, drift = clocks[role][0] * 1e6, clocks[role][1] * 1e-6

        def shift(stamp, offset=offset, drift=drift):
            return str(int(stamp) + round(offset) + round(drift * (int(stamp) - zero)))

        unix, perf = (attributes[f"kvlens.clock.anchor_{kind}_ns"] for kind in ("unix", "perf"))
        perf["intValue"] = str(int(perf["intValue"]) + round(drift * (int(unix["intValue"]) - zero)))
        unix["intValue"] = shift(unix["intValue"])
        attributes["kvlens.clock.boot_id"]["stringValue"] = f"boot-of-{role}"
        for span in (span for scope in resource["scopeSpans"] for span in scope["spans"]):
            for end in ("startTimeUnixNano", "endTimeUnixNano"):
                span[end] = shift(span[end])
            for one in span["attributes"]:
                if one["key"].endswith("_ns") and int(one["value"].get("intValue", 0)) > UNIX_TIMES:
                    one["value"]["intValue"] = shift(one["value"]["intValue"])
    return request
