"""The headline figures of a run, cached in the run as summary.json and made again when its data changed.

Schema history: 1, first release.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..breakdown import Breakdown, break_down
from ..errors import KvlensError
from ..reasons import HINTS
from ..run import find_run
from ..segments import CLASS_OF, CLASSES
from ..source import open_session

SCHEMA = 1
FILE = "summary.json"

POINTS = ("p50", "p90", "p99")


def read_headline(run: Path) -> dict[str, Any]:
    """Read the cached headline, or make and cache it; {"error": text} for a run that cannot be broken down."""
    try:
        fingerprint = take_fingerprint(run)
        cached = _read_cache(run)
        if cached is not None and cached.get("made_from") == fingerprint:
            return cached
        with open_session([run]) as session:
            made = summarize_breakdown(break_down(session))
    except KvlensError as error:
        return {"schema": SCHEMA, "error": error.message}
    headline = {"schema": SCHEMA, "made_from": fingerprint, **made}
    _write_cache(run, headline)
    return headline


def take_fingerprint(run: Path) -> dict[str, list[int]]:
    """Take size and modification time (ns) of every file that the headline is made from."""
    found = find_run([run])
    paths = [*found.files, *([found.client_path] if found.client_path else [])]
    stats = {str(path.relative_to(run)): path.stat() for path in paths}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in sorted(stats.items())}


def _read_cache(run: Path) -> dict[str, Any] | None:
    try:
        cached = json.loads((run / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return cached if isinstance(cached, dict) and cached.get("schema") == SCHEMA else None


def _write_cache(run: Path, headline: Mapping[str, Any]) -> None:
    """Write the cache in one step; a run that cannot be written is just read again next time."""
    scratch = run / f".{FILE}"
    with suppress(OSError):
        scratch.write_text(json.dumps(headline, indent=1) + "\n", encoding="utf-8")
        scratch.replace(run / FILE)


def summarize_breakdown(breakdown: Breakdown) -> dict[str, Any]:
    """Summarize a breakdown: figures per mode (ms, shares 0..1) and one sentence of conclusion for each."""
    modes = {mode: _summarize_mode(summary) for mode, summary in breakdown.summary["modes"].items()}
    return {
        "requests": breakdown.summary["requests"],
        "unfinished": breakdown.summary["unfinished"]["count"],
        "modes": modes,
        "conclusions": [
            f"{mode}: {conclude(figures)}" if len(modes) > 1 else conclude(figures)
            for mode, figures in modes.items()
            if figures["segments"]
        ],
    }


def _summarize_mode(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "count": summary["count"],
        **{f"ttft_{point}": summary["ttft_ms"].get(point) for point in POINTS},
        **{f"tpot_{point}": summary["tpot_ms"].get(point) for point in POINTS},
        "classes": {name: round(summary["classes"][name], 4) for name in (*CLASSES, "residual")},
        "segments": {name: round(entry["share"], 4) for name, entry in summary["segments"].items()},
        "uncertainty_p50": summary["uncertainty_ms"].get("p50"),
    }


def conclude(figures: Mapping[str, Any]) -> str:
    """Conclude in one sentence: the largest segment, and the largest one that computes nothing."""
    segments = figures["segments"]
    largest = max(segments, key=segments.__getitem__)
    waiting = {name: share for name, share in segments.items() if CLASS_OF[name] != "compute"}
    text = f"{largest} is the largest part of TTFT ({segments[largest]:.0%})"
    if largest in waiting or not waiting:
        return f"{text}: {HINTS[largest]}"
    worst = max(waiting, key=waiting.__getitem__)
    return f"{text}; beyond compute it is {worst} ({waiting[worst]:.0%}): {HINTS[worst]}"
