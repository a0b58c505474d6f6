"""Columnar batches of engine steps: one row per step, a run of idle steps folded into one row.

A span per step would cost as much as a short step; a batch is one span whose attributes are arrays of whole numbers.
Times of begin are deltas to the row before, so that the numbers stay small in every encoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

STEP_SCHEMA = 1
"""Version of the record. 1: first release."""

MAX_ROWS = 256

PROMPT, DECODE = 0, 1
"""Kinds of a run: the request computes its prompt (its first token included), or it decodes."""

IntColumns = Mapping[str, tuple[int, ...]]


@dataclass
class Columns:
    """The columns of a batch under construction; `first_step` and `begin` (monotonic ns) are those of its first row."""

    first_step: int
    begin: int
    end: int = 0
    last_begin: int = 0
    next_step: int = 0
    last_idle: bool = False
    values: dict[str, list[int]] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows so far."""
        return len(self.values.get("steps", ()))

    def follows(self, step: int) -> bool:
        """Return whether a step is the next one: a dropped event leaves a hole, and a batch has none."""
        return step == self.next_step

    def add(self, step: int, begin: int, end: int, *, idle: bool, **figures: int) -> bool:
        """Add one step; return whether it became a row of its own.

        Args:
            step: number of the step.
            begin, end: monotonic ns.
            idle: nothing was scheduled; consecutive idle steps share a row, their figures are summed.
            figures: the other columns, the same ones in every call.
        """
        self.end, self.next_step = max(self.end, end), step + 1
        if idle and self.last_idle:
            values = self.values
            values["steps"][-1] += 1
            values["duration_ns"][-1] = end - self.last_begin
            for name, value in figures.items():
                values[name][-1] += value
            return False
        if not self.values:
            self.values = {name: [] for name in ("steps", "begin_ns", "duration_ns", *figures)}
            self.last_begin = self.begin
        row = {"steps": 1, "begin_ns": begin - self.last_begin, "duration_ns": end - begin, **figures}
        for name, value in row.items():
            self.values[name].append(value)
        self.last_begin, self.last_idle = begin, idle
        return True

    def freeze(self) -> IntColumns:
        """Return the columns as they are exported; a column of zeros is left out."""
        return {name: tuple(column) for name, column in self.values.items() if any(column) or name == "steps"}


class Members:
    """Who was in which rows of a batch: per request and kind, runs of consecutive rows.

    Requests get small numbers in the order in which they first appear in the batch.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._open: dict[str, tuple[int, int]] = {}  # request -> kind, first row
        self._runs: list[tuple[int, int, int, int]] = []  # request number, kind, first row, rows

    def set_row(self, row: int, kinds: Mapping[str, int]) -> None:
        """Say who is in a row, request -> kind."""
        opened = self._open
        for request_id in [r for r, (kind, _) in opened.items() if kinds.get(r) != kind]:
            self._close(request_id, row)
        for request_id, kind in kinds.items():
            if request_id not in opened:
                self._numbers.setdefault(request_id, len(self._numbers))
                opened[request_id] = (kind, row)

    def _close(self, request_id: str, row: int) -> None:
        kind, first = self._open.pop(request_id)
        self._runs.append((self._numbers[request_id], kind, first, row - first))

    def freeze(self, rows: int) -> tuple[tuple[str, ...], IntColumns]:
        """End all runs; return the request ids and the columns of the runs."""
        for request_id in list(self._open):
            self._close(request_id, rows)
        names = ("run_request", "run_kind", "run_first", "run_rows")
        columns = zip(*self._runs, strict=True) if self._runs else ((), (), (), ())
        return tuple(self._numbers), dict(zip(names, columns, strict=True))
