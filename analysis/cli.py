"""The `kvlens` command: a root group whose sub-commands are entry points, imported only when they are called."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version

import click
import rich_click

from .errors import KvlensError

GROUP = "kvlens.commands"


class EntryPointGroup(rich_click.RichGroup):
    """Find sub-commands in the entry-point group, so that a feature is one line and one file."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *(point.name for point in entry_points(group=GROUP))})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command; a command whose dependencies are missing says so when it is called."""
        known = super().get_command(ctx, cmd_name)
        if known is not None:
            return known
        points = list(entry_points(group=GROUP, name=cmd_name))
        return _load(points[0]) if points else None

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; our own errors are two plain lines that a log and a grep can read, without a box."""
        try:
            return super().invoke(ctx)
        except KvlensError as error:
            error.show()
            return ctx.exit(error.exit_code)


def _load(point: EntryPoint) -> click.Command:
    try:
        command = getattr(import_module(point.module), point.attr)
    except ImportError as error:
        return _make_stub(point.name, f"not available: {error}")
    assert isinstance(command, click.Command)
    return command


def _make_stub(name: str, problem: str) -> click.Command:
    def fail(**_: object) -> None:
        raise KvlensError(
            f"kvlens {name} is {problem}", "pip install 'kvlens[lab]' (or the extra that names this command)"
        )

    settings = {"ignore_unknown_options": True, "allow_extra_args": True}
    return click.Command(name, callback=fail, help=problem, context_settings=settings, add_help_option=False)


def _read_version() -> str:
    try:
        return version("kvlens")
    except PackageNotFoundError:
        return "unknown (not installed)"


@click.group(cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(_read_version(), prog_name="kvlens")
def main() -> None:
    """Where every millisecond of TTFT and TPOT went in disaggregated vLLM serving over NIXL.

    \b
    Examples:
      kvlens lab run --mode pull --requests 20 --out runs/pull
      kvlens breakdown runs/pull
      kvlens breakdown runs/pull runs/push
    """
