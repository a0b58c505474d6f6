"""Pictures of the dashboards during the incidents of a kept run, for docs/walkthrough.md.

    python -m benchmarks.live.pictures runs/live docs/images

Draws with `kvlens dashboards preview` from the kept Prometheus and the run's spans, and takes pictures with Chromium.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .monitor import KVLENS, open_store
from .profile import WINDOW

WIDTH = 1400
MAX_BYTES = 150_000


@dataclass(frozen=True)
class Picture:
    """A board at the end of an incident.

    top, height: the part of the page to keep, in pixels. baseline: what the incident page compares with. pattern: of
    the X-Request-Id of the request that is shown, the median of these; empty for boards without one.
    """

    name: str
    board: str
    cluster: str
    incident: str
    height: int
    top: int = 0
    baseline: str = "60s"
    pattern: str = ""
    last: str = "150s"


PICTURES = (
    Picture("late-registration-1-overview", "kvlens-overview", "lab-push", "late registration", 1160),
    Picture("late-registration-2-incident", "kvlens-incident", "lab-push", "late registration", 820),
    Picture("late-registration-3-request", "kvlens-request-clickhouse", "lab-push", "late registration", 560,
            pattern="late-registration.*"),
    Picture("slow-transport-1-overview", "kvlens-overview", "lab-pull", "slow transport", 700, last="60s"),
    Picture("slow-transport-2-incident", "kvlens-incident", "lab-pull", "slow transport", 1240, baseline=""),
    Picture("slow-transport-3-wire", "kvlens-wire", "lab-pull", "slow transport", 440, last="60s"),
    Picture("expired-retention-1-reuse", "kvlens-reuse", "lab-bidirectional", "expired retention", 860),
    Picture("expired-retention-2-request", "kvlens-request-clickhouse", "lab-bidirectional", "expired retention", 560,
            pattern=r"expired-retention.*-t1"),
)  # fmt: skip


def take(run: Path, out: Path, store: Path | None = None) -> None:
    """Take all pictures whose incident is in the run."""
    phases = json.loads((run / "phases.json").read_text(encoding="utf-8"))["phases"]
    out.mkdir(parents=True, exist_ok=True)
    with open_store(store or run / "prometheus") as url, tempfile.TemporaryDirectory() as scratch:
        for picture in PICTURES:
            phase = find_phase(phases, picture)
            if phase is not None:
                page = draw(picture, phase, find_baseline(phases, picture, phase), url, Path(scratch))
                path = out / f"{picture.name}.png"
                size = photograph(page, picture, path, Path(scratch))
                print(f"{path} {size // 1000} kB")


def find_phase(phases: list[dict[str, Any]], picture: Picture) -> dict[str, Any] | None:
    found = [p for p in phases if p["cluster"] == picture.cluster and p["name"] == picture.incident]
    return found[-1] if found else None


def find_baseline(phases: list[dict[str, Any]], picture: Picture, phase: dict[str, Any]) -> str:
    """Return how long ago, seen from the end of the incident, is what it is compared with."""
    if picture.baseline:
        return picture.baseline
    healthy = next(p for p in phases if p["cluster"] == picture.cluster and p["name"] == "healthy")
    return f"{phase['ended'] - healthy['ended'] + 5:.0f}s"


def draw(picture: Picture, phase: dict[str, Any], baseline: str, url: str, folder: Path) -> Path:
    """Draw the board as it was at the end of the incident."""
    arguments = ["--prometheus", url, "--source", phase["run"], "--out", str(folder), "--board", picture.board]
    arguments += ["--at", f"{phase['ended'] - 1:.0f}", "--last", picture.last, "--window", WINDOW]
    arguments += ["--baseline", baseline, "--set", f"cluster={picture.cluster}"]
    if picture.pattern:
        arguments += ["--trace", find_typical(Path(phase["run"]), picture.pattern)]
    subprocess.run([*KVLENS, "dashboards", "preview", *arguments], check=True, stdout=subprocess.DEVNULL)
    return folder / f"{picture.board}.html"


def find_typical(run: Path, pattern: str) -> str:
    """Return the trace id of the median request, by TTFT, of those whose X-Request-Id matches."""
    done = subprocess.run([*KVLENS, "breakdown", str(run), "--json"], check=True, capture_output=True, text=True)
    requests = [r for r in json.loads(done.stdout)["requests"] if re.fullmatch(pattern, r["request_key"])]
    ordered = sorted(requests, key=lambda request: request["ttft_ms"] or 0)
    return str(ordered[len(ordered) // 2]["trace_id"])


def photograph(page: Path, picture: Picture, path: Path, folder: Path) -> int:
    """Take the picture with Chromium, few colours, and return its bytes."""
    from PIL import Image

    raw = folder / "raw.png"
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--hide-scrollbars", "--virtual-time-budget=15000", f"--user-data-dir={folder / 'profile'}",
             f"--window-size={WIDTH},{picture.top + picture.height}", f"--screenshot={raw}"]  # fmt: skip
    subprocess.run([shutil.which("chromium") or "chromium", *flags, page.as_uri()], check=True, capture_output=True)
    image = Image.open(raw).convert("RGB").crop((0, picture.top, WIDTH, picture.top + picture.height))
    image.quantize(160, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    assert size <= MAX_BYTES, f"{path}: {size} bytes"
    return size


if __name__ == "__main__":
    take(*map(Path, sys.argv[1:]))
