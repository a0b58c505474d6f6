"""Append-only files of one process in a shared directory, under a size bound."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path

DEFAULT_MAX_BYTES = 64 * 1024 * 1024
DEFAULT_MAX_FILES = 16
SUFFIX = ".otlp.jsonl"

_NAME = re.compile(r"^(?P<owner>.+)-(?P<pid>\d+)-(?P<n>\d+)" + re.escape(SUFFIX) + "$")


class Spool:
    """Append lines to `<owner>-<pid>-<n>.otlp.jsonl`, starting a new file when one is full.

    The file in use is locked (flock), so that another process that makes room never deletes it. Not thread-safe.
    """

    def __init__(self, directory: Path, *, max_bytes: int, max_files: int) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._fd = -1
        self._size = 0
        self.path: Path | None = None
        self.written_bytes = 0
        self.deleted_files = 0
        self.deleted_bytes = 0

    def append(self, owner: str, line: bytes) -> None:
        """Append one whole line in one write(). Raises OSError; the file then ends with the last whole line."""
        if self._fd < 0 or self._is_gone() or (self._size and self._size + len(line) > self._max_bytes):
            self._open_next(owner, len(line))
        try:
            written = os.write(self._fd, line)
        except OSError:
            self.close()
            raise
        if written != len(line):
            self._cut_back()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._size += written
        self.written_bytes += written

    def close(self) -> None:
        """Close the file in use, which also unlocks it."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
        self._fd = -1

    def forget(self) -> None:
        """Drop a file inherited by a fork; the parent keeps its own descriptor and its lock."""
        self.close()

    def _is_gone(self) -> bool:
        """Whether somebody removed the file under us, for instance a log rotation."""
        try:
            return os.fstat(self._fd).st_nlink == 0
        except OSError:
            return True

    def _cut_back(self) -> None:
        """Take half a line off again; a new file comes next in any case."""
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, self._size)
        self.close()

    def _open_next(self, owner: str, needed: int) -> None:
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        prefix = f"{_make_safe(owner)}-{os.getpid()}-"
        self._make_room(prefix, needed)
        number = 1 + max((n for n, _ in self._own_files(prefix)), default=-1)
        while self._fd < 0:
            path = self._directory / f"{prefix}{number}{SUFFIX}"
            number += 1
            # Exclusive: a container's processes have the same pid after every restart.
            with contextlib.suppress(FileExistsError):
                self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.path, self._size = path, 0
        with contextlib.suppress(OSError):  # no locks on some network file systems: the bound is then best effort
            fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _own_files(self, prefix: str) -> list[tuple[int, Path]]:
        found = [(m, path) for m, path in self._list_files() if f"{m['owner']}-{m['pid']}-" == prefix]
        return sorted((int(match["n"]), path) for match, path in found)

    def _list_files(self) -> Iterator[tuple[re.Match[str], Path]]:
        for path in self._directory.iterdir():
            match = _NAME.match(path.name)
            if match:
                yield match, path

    def _make_room(self, prefix: str, needed: int) -> None:
        """Delete the oldest files: of this process above max_files, of anybody above max_files * max_bytes."""
        own = self._own_files(prefix)
        for _, path in own[: max(0, len(own) - self._max_files + 1)]:
            self._delete(path)
        stats = sorted(_stat_files(path for _, path in self._list_files()))
        total = sum(size for _, size, _ in stats)
        for _, size, path in stats:
            if total + needed <= self._max_bytes * self._max_files:
                break
            if self._delete(path):
                total -= size

    def _delete(self, path: Path) -> bool:
        """Delete a file unless somebody writes to it; returns whether it is gone."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(fd).st_size
            path.unlink()
        except OSError:
            return False
        finally:
            os.close(fd)
        self.deleted_files += 1
        self.deleted_bytes += size
        return True


def _stat_files(paths: Iterator[Path]) -> Iterator[tuple[int, int, Path]]:
    """Yield (modification time in ns, size in bytes, path) of the files that still exist."""
    for path in paths:
        with contextlib.suppress(OSError):
            stat = path.stat()
            yield stat.st_mtime_ns, stat.st_size, path


def _make_safe(name: str) -> str:
    """Make a file name part of a service and instance name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:120].lstrip(".") or "unknown"
