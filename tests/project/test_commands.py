"""Every sub-command loads, and its help exits 0 and has an example."""

from __future__ import annotations

import re
from importlib.metadata import entry_points

import click
import pytest
from click.testing import CliRunner

COMMANDS = {point.name: point for point in entry_points(group="kvlens.commands")}


def walk(name: str, command: click.Command) -> list[tuple[str, click.Command]]:
    """Return the command and, for a group, everything below it."""
    found = [(name, command)]
    if isinstance(command, click.Group):
        for sub, child in command.commands.items():
            found += walk(f"{name} {sub}", child)
    return found


def test_there_are_commands() -> None:
    assert "breakdown" in COMMANDS
    assert "lab" in COMMANDS


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_exits_zero_and_shows_an_example(name: str) -> None:
    command = COMMANDS[name].load()
    assert isinstance(command, click.Command)
    for path, child in walk(f"kvlens {name}", command):
        done = CliRunner().invoke(child, ["--help"], prog_name=path)
        assert done.exit_code == 0, done.output
        if not isinstance(child, click.Group):
            # An example is a line that begins with the command itself, so that a reader can copy it.
            example = rf"^[\s│$]*{re.escape(path)}\b(?! \[OPTIONS\])"
            assert re.search(example, strip_usage(done.output), re.M), done.output


def strip_usage(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if "Usage:" not in line)


def test_root_command_lists_them() -> None:
    from analysis.cli import main

    done = CliRunner().invoke(main, ["--help"], prog_name="kvlens")
    assert done.exit_code == 0, done.output
    for name in COMMANDS:
        assert name in done.output
