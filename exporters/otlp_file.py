"""The default exporter: OTLP JSON lines, one file per process, rotated, size-bounded and crash-safe."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from instrumented_connectors.settings import read_positive

from .otlp_json import encode_lines
from .spool import DEFAULT_MAX_BYTES, DEFAULT_MAX_FILES, Spool

logger = logging.getLogger(__name__)

FIRST_BACKOFF_S, MAX_BACKOFF_S = 1.0, 60.0


def choose_directory(directory: str | os.PathLike[str] | None = None) -> tuple[Path, bool]:
    """Choose where spans go: the argument, KVLENS_TRACES_DIR, or the documented default.

    Returns (directory, whether it is the default ${XDG_STATE_HOME:-~/.local/state}/kvlens/traces).
    """
    configured = directory or os.environ.get("KVLENS_TRACES_DIR")
    if configured:
        return Path(os.path.expanduser(configured)), False
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "kvlens" / "traces", True


class OTLPFileSpanExporter(SpanExporter):
    """Write spans as OTLP JSON lines to `<service>-<instance>-<pid>-<n>.otlp.jsonl`; never raises.

    directory: where to write; None takes KVLENS_TRACES_DIR or the default directory, which is created.
    max_bytes: size in bytes at which a file is full (KVLENS_FILE_MAX_BYTES, 64 MiB).
    max_files: files kept per process, and times max_bytes the size that the directory is kept under
    (KVLENS_FILE_MAX_FILES, 16); the oldest files that nobody writes to are deleted and counted.
    monotonic: clock in seconds for the back-off.

    Every line goes out in one write(), so that a killed process leaves whole lines. When the directory cannot be
    written or the disk is full, spans are counted in `lost_spans`, one warning is logged and the next try comes after
    a back-off of 1 s that doubles up to 60 s.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        max_files: int | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory, is_default = choose_directory(directory)
        self._max_bytes = max_bytes or read_positive(os.environ, "KVLENS_FILE_MAX_BYTES", DEFAULT_MAX_BYTES)
        self._max_files = max_files or read_positive(os.environ, "KVLENS_FILE_MAX_FILES", DEFAULT_MAX_FILES)
        self._monotonic = monotonic
        self._warned = False
        self._start_in_process()
        # Somebody who configured nothing must learn where the files are, also where only warnings are shown.
        level = logging.WARNING if is_default else logging.INFO
        hint = " (set KVLENS_TRACES_DIR to choose another directory)" if is_default else ""
        logger.log(level, "kvlens writes its spans to %s%s", self.directory, hint)

    def _start_in_process(self) -> None:
        """Start with a lock, a spool and counters of this process; also after a fork, which inherits the parent's."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._spool = Spool(self.directory, max_bytes=self._max_bytes, max_files=self._max_files)
        self._closed = False
        self._backoff_s = FIRST_BACKOFF_S
        self._retry_at = float("-inf")
        self.exported_spans = 0
        self.lost_spans = 0
        self.failed_writes = 0

    @property
    def path(self) -> Path | None:
        """The file that is being written, None before the first span."""
        return self._spool.path

    @property
    def written_bytes(self) -> int:
        """Bytes written by this process."""
        return self._spool.written_bytes

    @property
    def deleted_files(self) -> int:
        """Files deleted to keep the size bound."""
        return self._spool.deleted_files

    @property
    def deleted_bytes(self) -> int:
        """Bytes deleted to keep the size bound."""
        return self._spool.deleted_bytes

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Append the spans; FAILURE when some were lost."""
        if os.getpid() != self._pid:
            self._spool.forget()
            self._start_in_process()
        if not spans:
            return SpanExportResult.SUCCESS
        with self._lock:
            before = self.exported_spans
            try:
                self._write(spans)
            except Exception as error:
                self._note_failure(error)
            lost = len(spans) - (self.exported_spans - before)
            self.lost_spans += lost
            return SpanExportResult.FAILURE if lost else SpanExportResult.SUCCESS

    def _write(self, spans: Sequence[ReadableSpan]) -> None:
        if self._closed or self._monotonic() < self._retry_at:
            return
        attributes = spans[0].resource.attributes
        owner = f"{attributes.get('service.name', 'unknown')}-{attributes.get('service.instance.id', 'unknown')}"
        for line, count in encode_lines(spans):
            self._spool.append(owner, line)
            self.exported_spans += count
        self._backoff_s = FIRST_BACKOFF_S

    def _note_failure(self, error: Exception) -> None:
        self.failed_writes += 1
        if isinstance(error, OSError):  # a span that cannot be encoded says nothing about the disk
            self._retry_at = self._monotonic() + self._backoff_s
            self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)
        if not self._warned:
            self._warned = True
            logger.warning(
                "kvlens cannot write spans to %s: %s. Serving goes on, lost spans are counted, writing is tried again.",
                self.directory,
                error,
            )

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is buffered here: each line is with the kernel when export returns."""
        return True

    def shutdown(self) -> None:
        """Close the file; later spans are counted as lost."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            self._spool.close()
