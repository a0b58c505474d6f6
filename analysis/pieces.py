"""Cut span files into pieces of whole messages: JSON lines, or protobuf as collectors and SDKs write it.

Told apart by content, not by name:
- JSON lines: one ExportTraceServiceRequest per line (kvlens's exporter; the collector's file exporter, format json);
- the collector's file exporter with format proto, or with compression: each message after its length, 4 bytes
  big-endian, each one compressed (zstd) on its own where compression is on;
- length-delimited protobuf: each message after its length as a varint (protobuf's writeDelimitedTo);
- one message per file: the body of an http/protobuf export.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from mmap import ACCESS_READ, mmap
from pathlib import Path

PIECE_BYTES = 72 * 1024 * 1024
"""Bytes of messages in a piece: about 100,000 spans in JSON, and more than the file exporter puts into a file."""
JSON, PROTOBUF = "json", "protobuf"
MAX_MESSAGE_BYTES = 128 * 1024 * 1024
"""Above what a collector sends in one message; an unframed message read as a length would be longer."""
LINKED_BYTES = 1024 * 1024
"""A plain file at least this long that is a piece is parsed where it lies; shorter ones are put together."""
_FIRST_FIELD, _BRACE, _ZSTD = 0x0A, 0x7B, b"\x28\xb5\x2f\xfd"

Frames = Callable[[io.BufferedReader], Iterator["bytes | None"]]


@dataclass(frozen=True)
class Piece:
    """Some whole messages of one file, as lines of JSON or as length-delimited (varint) protobuf.

    messages, damaged: counted for protobuf only; JSON lines are counted where they are parsed. path: of a file that is
    nothing but this piece.
    """

    file: str
    position: int
    data: bytes | mmap
    kind: str = JSON
    messages: int = 0
    damaged: int = 0
    path: Path | None = None

    @property
    def digest(self) -> str:
        """Digest of the bytes: the same messages are the same piece whatever the file is called.

        SHA-256 since processors compute it: twice as fast as BLAKE2 there.
        """
        return sha256(self.data).hexdigest()


def is_json_lines(path: Path) -> bool:
    """Whether a file is plain JSON lines, which the database can read by itself."""
    with _open(path) as reader:
        return not _is_binary(reader)


def read_pieces(path: Path, size: int = PIECE_BYTES) -> Iterator[Piece]:
    """Cut a span file (also .gz or .zst) into pieces of whole messages; a message that is cut off counts as damaged."""
    with _open(path) as reader:
        if not _is_binary(reader):
            if path.suffix == ".jsonl" and LINKED_BYTES <= path.stat().st_size <= size:
                yield Piece(path.name, 0, _map(path), path=path)
            else:
                yield from _cut_lines(path.name, reader, size)
            return
        yield from _cut_frames(path.name, _choose_framing(reader)(reader), size)


@contextmanager
def keep_schema_aside() -> Iterator[None]:
    """Work in a temporary folder: chDB leaves the schema of a protobuf query in `__cache__` of the working one.

    The same folder until the process ends: chDB remembers that it has written the schema.
    """
    before = os.getcwd()
    os.chdir(_make_schema_folder().name)
    try:
        yield
    finally:
        os.chdir(before)


@cache
def _make_schema_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kvlens-schema-")


def _open(path: Path) -> io.BufferedReader:
    import pyarrow as pa

    return io.BufferedReader(pa.input_stream(str(path), compression="detect"), 1 << 20)


def _map(path: Path) -> mmap:
    with path.open("rb") as file:
        return mmap(file.fileno(), 0, access=ACCESS_READ)


def _is_binary(reader: io.BufferedReader) -> bool:
    head = reader.peek(64)[:64].lstrip(b" \t\r")
    return bool(head) and head[0] != _BRACE and (head[0] != _FIRST_FIELD or head[1:2] not in (b"{", b"\n"))


def _cut_lines(file: str, reader: io.BufferedReader, size: int) -> Iterator[Piece]:
    position = 0
    while data := reader.read(size):
        data += reader.readline()
        yield Piece(file, position, data)
        position += len(data)


def _cut_frames(file: str, frames: Iterator[bytes | None], size: int) -> Iterator[Piece]:
    position, kind = 0, PROTOBUF
    parts: list[bytes] = []
    held = damaged = 0
    for frame in frames:
        if frame is None:
            damaged += 1
            continue
        message = _unpack(frame)
        kind = JSON if message[:1] == b"{" else PROTOBUF
        parts.append(message + b"\n" if kind == JSON else _write_varint(len(message)) + message)
        held += len(parts[-1])
        if held >= size:
            yield Piece(file, position, b"".join(parts), kind, len(parts), damaged)
            position, parts, held, damaged = position + held, [], 0, 0
    if parts or damaged:
        yield Piece(file, position, b"".join(parts), kind, len(parts) + damaged, damaged)


def _unpack(frame: bytes) -> bytes:
    if not frame.startswith(_ZSTD):
        return frame
    import pyarrow as pa

    data: bytes = pa.input_stream(pa.py_buffer(frame), compression="zstd").read()
    return data


def _choose_framing(reader: io.BufferedReader) -> Frames:
    head = reader.peek(64)[:64]
    length = int.from_bytes(head[:4], "big")
    if 0 < length <= MAX_MESSAGE_BYTES and head[4:5] and (head[4] in (_FIRST_FIELD, _BRACE) or head[4:8] == _ZSTD):
        return _read_collector_frames
    # A lone message begins with its first field's tag, which as a length would be 10 bytes: no message is that short.
    _, used = _read_varint(head)
    delimited = used and head[0] != _FIRST_FIELD and head[used : used + 1] == bytes([_FIRST_FIELD])
    return _read_delimited_frames if delimited else _read_lone_message


def _read_collector_frames(reader: io.BufferedReader) -> Iterator[bytes | None]:
    while prefix := reader.read(4):
        yield _read_exactly(reader, int.from_bytes(prefix, "big") if len(prefix) == 4 else -1)


def _read_delimited_frames(reader: io.BufferedReader) -> Iterator[bytes | None]:
    while head := reader.peek(10)[:10]:
        size, used = _read_varint(head)
        reader.read(used or len(head))
        yield _read_exactly(reader, size if used else -1)


def _read_lone_message(reader: io.BufferedReader) -> Iterator[bytes | None]:
    yield reader.read()


def _read_exactly(reader: io.BufferedReader, size: int) -> bytes | None:
    data = reader.read(size) if 0 <= size <= MAX_MESSAGE_BYTES else b""
    return data if len(data) == size else None


def _read_varint(data: bytes) -> tuple[int, int]:
    """Return a varint and its length in bytes (0: there is none)."""
    value = 0
    for place, byte in enumerate(data[:10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, place + 1
    return 0, 0


def _write_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
