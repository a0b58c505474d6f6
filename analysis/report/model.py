"""What a report is made of: runs, charts and sections; plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..breakdown import Breakdown


@dataclass(frozen=True)
class RunData:
    """One run: its breakdown, and what sections loaded while it was open (section name -> value or None)."""

    breakdown: Breakdown
    loaded: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.breakdown.run.name


@dataclass(frozen=True)
class Report:
    """One run, or two to be compared. requests: ids to show as waterfalls, the slowest if empty."""

    runs: tuple[RunData, ...]
    requests: tuple[str, ...] = ()

    @property
    def is_pair(self) -> bool:
        """Whether there are two runs."""
        return len(self.runs) == 2


@dataclass(frozen=True)
class Table:
    """A table: text first, figures right-aligned. Cells are plain text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text_columns: int = 1
    marks: Mapping[int, str] = field(default_factory=dict)
    """Row number -> CSS class."""


@dataclass(frozen=True)
class Chart:
    """A Vega-Lite chart with what it shows in words, and its figures as a table for those who cannot see it."""

    spec: Mapping[str, Any]
    description: str
    table: Table | None = None
    is_stacked: bool = False
    """Whether a thin gap is drawn between neighbouring pieces."""


@dataclass(frozen=True)
class Section:
    """A section: heading, an answer in a sentence or two, then charts, tables and paragraphs in order."""

    title: str
    lead: str
    parts: Sequence[Chart | Table | str | Heading | Notes] = ()


@dataclass(frozen=True)
class Heading:
    """A heading inside a section, with a line of details below."""

    text: str
    details: str = ""


@dataclass(frozen=True)
class Notes:
    """Assumptions and limits, in small print."""

    lines: Sequence[str]
