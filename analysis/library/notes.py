"""Notes of a run: notes.jsonl, one JSON object per line, appended and never rewritten.

Schema history: 1, first release (created, kind note|comparison, text, other).
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ..errors import KvlensError

SCHEMA = 1
FILE = "notes.jsonl"


def append_note(run: Path, text: str, *, kind: str = "note", other: str | None = None) -> None:
    """Append a note in a single write.

    kind: "note" for a person's, "comparison" for what `kvlens compare --save` found against the run `other`.
    Raises KvlensError when the run is no directory or cannot be written.
    """
    if not run.is_dir():
        raise KvlensError(f"{run} is no run directory", "the path of a run directory (see: kvlens runs)", exit_code=2)
    created = datetime.now(timezone.utc).isoformat(timespec="seconds")
    note = {"schema": SCHEMA, "created": created, "kind": kind, "text": text, **({"other": other} if other else {})}
    try:
        with (run / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(note, ensure_ascii=False) + "\n")
    except OSError as error:
        raise KvlensError(f"cannot write {run / FILE}: {error}", "make the run directory writable") from error


def read_notes(run: Path) -> list[dict[str, Any]]:
    """Read the notes of a run, oldest first; damaged lines are skipped."""
    try:
        lines = (run / FILE).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    notes = []
    for line in lines:
        try:
            note = json.loads(line)
        except ValueError:
            continue
        if isinstance(note, dict) and isinstance(note.get("text"), str):
            notes.append(note)
    return notes
