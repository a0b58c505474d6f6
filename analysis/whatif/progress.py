"""A progress bar for replays that take a while, on standard error and only where somebody looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .replay import Progress as Report

LONG = 2000
"""Simulated requests from which on a bar is shown: a few seconds."""


@contextmanager
def show_progress(total: int, stream: TextIO) -> Iterator[Report | None]:
    """Show a bar while requests are simulated; yields what to call with their number."""
    console = Console(file=stream)
    if total < LONG or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("replaying", total=total)
        yield lambda count: bar.update(task, advance=count)
