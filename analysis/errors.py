"""The one error that users see: what is wrong and what to do about it."""

from __future__ import annotations

from typing import IO, Any

import click


class KvlensError(click.ClickException):
    """A problem with data (exit code 1) or usage (exit code 2), printed as "Error: ... / Try: ...".

    message: what is wrong, with names and numbers.
    remedy: what to do, as an exact setting or command where there is one.
    """

    def __init__(self, message: str, remedy: str, *, exit_code: int = 1) -> None:
        super().__init__(message)
        self.remedy = remedy
        if exit_code != type(self).exit_code:
            self.exit_code = exit_code  # type: ignore[misc]  # click declares a class variable and reads the instance

    def format_message(self) -> str:
        """Message and remedy, one line each."""
        return f"{self.message}\nTry: {self.remedy}"

    __str__ = format_message

    def show(self, file: IO[Any] | None = None) -> None:
        """Print it on standard error."""
        click.echo(f"Error: {self.format_message()}", file=file, err=True)
