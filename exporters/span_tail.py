"""Follow the OTLP JSON line files of a directory, whoever writes, rotates or removes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .spool import SUFFIX

Attributes = dict[str, Any]
SpanRecord = tuple[Attributes, dict[str, Any]]
"""resource attributes, span as in the OTLP JSON encoding."""

MAX_POLL_BYTES = 64 * 1024 * 1024


class SpanTail:
    """Read the spans that were appended since the last poll.

    Args:
        directory: folder of the files; it may not exist yet.
        skip_existing: begin at the end of the files that are there now.
    """

    def __init__(self, directory: Path, *, skip_existing: bool = False) -> None:
        self._directory = directory
        self._offsets: dict[tuple[int, int], int] = {}
        self.bad_lines = 0
        if skip_existing:
            for path in self._list():
                stat = path.stat()
                self._offsets[stat.st_dev, stat.st_ino] = stat.st_size

    def _list(self) -> list[Path]:
        return sorted(self._directory.glob(f"*{SUFFIX}"))

    def poll(self) -> Iterator[SpanRecord]:
        """Yield new spans, of about MAX_POLL_BYTES at most; a line that isn't whole yet is left for the next poll."""
        left = MAX_POLL_BYTES
        offsets: dict[tuple[int, int], int] = {}
        for path in self._list():
            try:
                with path.open("rb") as file:
                    stat = path.stat()
                    key = (stat.st_dev, stat.st_ino)
                    offset = self._offsets.get(key, 0)
                    # A file that became shorter was written anew.
                    start = offset if offset <= stat.st_size else 0
                    lines = _read_whole_lines(file, start, left)
            except OSError:
                # Removed by its writer's rotation between the listing and now.
                continue
            size = sum(map(len, lines))
            offsets[key], left = start + size, left - size
            for line in lines:
                yield from self._parse(line)
        self._offsets = offsets

    def _parse(self, line: bytes) -> Iterator[SpanRecord]:
        try:
            document = json.loads(line)
            for resource in document["resourceSpans"]:
                about = read_attributes(resource.get("resource", {}).get("attributes", []))
                for scope in resource.get("scopeSpans", []):
                    for span in scope.get("spans", []):
                        yield about, span
        except (ValueError, KeyError, TypeError, AttributeError):
            self.bad_lines += 1


def _read_whole_lines(file: BinaryIO, start: int, limit: int) -> list[bytes]:
    if limit <= 0:
        return []
    file.seek(start)
    lines = file.readlines(limit)
    return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]


def read_attributes(pairs: list[dict[str, Any]]) -> Attributes:
    """Return OTLP JSON key-value pairs as a plain dict; whole numbers, which it writes as strings, as int."""
    return {pair["key"]: _read_value(pair["value"]) for pair in pairs}


def _read_value(value: dict[str, Any]) -> Any:
    kind, content = next(iter(value.items()))
    return int(content) if kind == "intValue" else content
