"""What a run directory holds: its conditions, its span files and what the client measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from .errors import KvlensError

SPAN_FILE_PATTERNS = tuple(
    f"*.{kind}{packed}" for kind in ("jsonl", "pb", "binpb", "protobuf") for packed in ("", ".gz", ".zst")
)

CLIENT_SCHEMA = {
    "request_id": pl.String,
    "status": pl.String,
    "send_unix_ns": pl.Int64,
    "first_byte_unix_ns": pl.Int64,
    "end_unix_ns": pl.Int64,
    "ttft_ms": pl.Float64,
}


@dataclass(frozen=True)
class Run:
    """Paths and conditions of one run; nothing is loaded yet except the manifest."""

    name: str
    files: tuple[Path, ...]
    manifest: dict[str, Any] = field(default_factory=dict)
    client_path: Path | None = None


def find_run(paths: Sequence[Path]) -> Run:
    """Find the span files of a run directory, a bare traces directory, or some span files taken together.

    Raises KvlensError when there is no such path or no span file in it.
    """
    for path in paths:
        if not path.exists():
            raise KvlensError(
                f"no such run: {path}", "kvlens lab run --mode pull --out RUN, or the path of a traces folder"
            )
    if len(paths) == 1 and paths[0].is_dir():
        return _find_in_directory(paths[0])
    directories = [path for path in paths if path.is_dir()]
    if directories:
        raise KvlensError(f"{directories[0]} is a folder among files", "one folder per run, or files only", exit_code=2)
    return Run(name=paths[0].name, files=tuple(paths))


def _find_in_directory(root: Path) -> Run:
    files = _list_span_files(root / "traces") or _list_span_files(root)
    manifest_path, client_path = root / "manifest.json", root / "client.jsonl"
    if not files:
        raise KvlensError(
            f"no span files in {root} (looked for *.jsonl and *.pb in it and in traces/)",
            "set KVLENS_TRACES_DIR on the engines (OTEL_TRACES_EXPORTER=kvlens), or name the folder with *.otlp.jsonl",
        )
    return Run(
        name=root.resolve().name,
        files=files,
        manifest=_read_manifest(manifest_path) if manifest_path.exists() else {},
        client_path=client_path if client_path.exists() else None,
    )


def _list_span_files(directory: Path) -> tuple[Path, ...]:
    found = {path for pattern in SPAN_FILE_PATTERNS for path in directory.glob(pattern) if path.is_file()}
    return tuple(sorted(path for path in found if path.name != "client.jsonl"))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise KvlensError(
            f"cannot read {path}: {error}", "repair the file, or remove it to go on without conditions"
        ) from error
    if not isinstance(manifest, dict):
        raise KvlensError(f"{path} is not a JSON object", "repair the file, or remove it to go on without conditions")
    return manifest


def read_client(path: Path | None) -> tuple[pl.DataFrame, int]:
    """Read what the client measured: (one row per request with CLIENT_SCHEMA's columns, damaged lines skipped)."""
    if path is None:
        return pl.DataFrame(schema=CLIENT_SCHEMA), 0
    rows: list[dict[str, Any]] = []
    bad = 0
    with path.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line)
                rows.append({name: record.get(name) for name in CLIENT_SCHEMA})
            except (ValueError, AttributeError):
                bad += bool(line.strip())
    return pl.DataFrame(rows, schema=CLIENT_SCHEMA, strict=False), bad
