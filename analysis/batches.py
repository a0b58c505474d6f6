"""Put pieces of span files together, as files in a temporary folder, one batch ahead of what the database parses."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path

import numpy as np

from .pieces import PIECE_BYTES, PROTOBUF, Piece, read_pieces

BATCH_PIECES = 3
"""Pieces that are stored together, full ones: some 280,000 spans. Two batches are held, one parsed and one stored."""
STREAMS = 2
"""Files for what is copied: chDB parses one file with one thread."""
COUNTED_BYTES, NEWLINE = 1 << 18, ord("\n")


@dataclass
class Batch:
    """Pieces of one kind on their way in: their bytes lie in files, what is recorded of them is here.

    held: bytes. lines: of every piece. damaged: messages of protobuf that are cut off. files: names of the span files.
    skipped, read: pieces that were known already and bytes read, since the batch before.
    """

    kind: str
    folder: tempfile.TemporaryDirectory[str]
    digests: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    damaged: int = 0
    held: int = 0
    skipped: int = 0
    read: int = 0

    @property
    def pattern(self) -> str:
        """Name of its files as file() takes it; empty when they are."""
        names = sorted(path.stem for path in Path(self.folder.name).iterdir() if path.stat().st_size)
        return f"{self.folder.name}/{{{','.join(names)}}}.jsonl" if names else ""

    def add(self, piece: Piece, digest: str) -> None:
        """Link a piece that is a file, write another one into the file that is shortest so far."""
        if piece.path is not None:
            (Path(self.folder.name) / f"{len(self.digests)}-linked.jsonl").symlink_to(piece.path.resolve())
        else:
            self._write(piece)
        self.digests.append(digest)
        self.files.append(piece.file)
        self.positions.append(piece.position)
        self.lines.append(piece.messages or count_lines(piece.data))
        self.damaged += piece.damaged
        self.held += len(piece.data)

    def _write(self, piece: Piece) -> None:
        sizes = {path: path.stat().st_size if path.exists() else 0 for path in self._list_files()}
        with min(sizes, key=lambda path: sizes[path]).open("ab") as file:
            file.write(piece.data)
            if piece.kind != PROTOBUF and piece.data[-1:] != b"\n":
                file.write(b"\n")

    def _list_files(self) -> list[Path]:
        return [Path(self.folder.name) / f"{number}.jsonl" for number in range(STREAMS)]


def count_lines(data: bytes | mmap) -> int:
    """Count lines, empty ones among them, a part at a time so that it stays in the processor's cache."""
    text = np.frombuffer(data, dtype=np.uint8)
    ends = sum(
        np.count_nonzero(text[start : start + COUNTED_BYTES] == NEWLINE) for start in range(0, text.size, COUNTED_BYTES)
    )
    return int(ends) + bool(text.size and text[-1] != NEWLINE)


def gather_batches(files: tuple[Path, ...], known: set[str], size: int = PIECE_BYTES) -> Iterator[Batch]:
    """Yield the pieces that are not known yet, small ones together: storing has a price per statement.

    The last batch may hold no piece, only how many were skipped.
    """
    batch = _open_batch("")
    for path in files:
        for piece in read_pieces(path, size):
            batch.read += len(piece.data)
            digest = piece.digest
            if digest in known:
                batch.skipped += 1
                continue
            known.add(digest)
            batch.kind = batch.kind or piece.kind
            if batch.digests and (batch.held + len(piece.data) > BATCH_PIECES * size or piece.kind != batch.kind):
                yield batch
                batch = _open_batch(piece.kind)
            batch.add(piece, digest)
    yield batch


def read_ahead(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield the same batches while a thread makes the next one: reading and digests beside the parsing."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = pool.submit(next, batches, None)
            with batch.folder:
                yield batch


def _open_batch(kind: str) -> Batch:
    return Batch(kind, tempfile.TemporaryDirectory(prefix="kvlens-batch-"))
