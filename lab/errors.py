"""Errors of the lab: what happened, and what to do about it."""

from __future__ import annotations

from pathlib import Path

from analysis.errors import KvlensError


class LabError(KvlensError):
    """The lab could not do what was asked."""


class PortTakenError(LabError):
    """A port that was asked for is in use."""

    def __init__(self, port: int, purpose: str) -> None:
        super().__init__(
            f"port {port} for {purpose} is already in use on 127.0.0.1",
            "stop what listens there (see `ss -ltnp`), or leave the port out: the lab then picks a free one",
        )


class ProcessDiedError(LabError):
    """An engine or the router ended, or never became ready; the message holds the end of its log."""

    def __init__(self, name: str, reason: str, log: Path, tail: str) -> None:
        super().__init__(f"{name} {reason}; last lines of {log}:\n{tail}", f"read {log}")
