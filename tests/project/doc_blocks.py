"""Find the fenced bash blocks of the documentation and say how each is to be tested."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path

import click

BLOCK = re.compile(r"(?:^<!-- (?P<marker>[^>\n]*?) -->\n+)?^```bash\n(?P<script>.*?)^```$", re.M | re.S)
RUN, ENGINE, PARSED = "run", "engine", "parsed only"
MARKERS = {None: RUN, "engine": ENGINE, "cluster: parsed only": PARSED, "repository: parsed only": PARSED}


@dataclass(frozen=True)
class Block:
    """One fenced block: the page it is on, its line, its script and how it is tested."""

    page: Path
    line: int
    script: str
    kind: str


def find_blocks(page: Path) -> list[Block]:
    """Return the bash blocks of a page in order.

    Raises:
        ValueError: a marker before a fence is none of the documented ones.
    """
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("script"))
        if match["marker"] not in MARKERS:
            raise ValueError(f"{page.name}:{line}: unknown marker {match['marker']!r}")
        blocks.append(Block(page, line, match["script"], MARKERS[match["marker"]]))
    return blocks


def split_commands(script: str) -> list[list[str]]:
    """Return the words of every command of a script; continued lines are joined, comments dropped."""
    text = re.sub(r"(?:^|(?<=\s))#[^\n]*", "", script.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    commands: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= set(";&|\n"):
            commands.append([])
        elif commands[-1] or not re.fullmatch(r"\w+=.*", word):
            commands[-1].append(word)
    return [words for words in commands if words]


def find_unknown_options(words: list[str]) -> list[str]:
    """Return what the named ``kvlens`` sub-command does not know: the sub-command itself or options."""
    points = {point.name: point for point in entry_points(group="kvlens.commands")}
    name, *rest = words[1:] or [""]
    if name.startswith("-"):
        return []
    if name not in points:
        return [name]
    command: click.Command = points[name].load()
    while isinstance(command, click.Group) and rest and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    known = {"--help"}.union(*(set(param.opts) | set(param.secondary_opts) for param in command.params))
    return [
        word for word in rest if word.startswith("-") and word.split("=")[0] not in known and word not in ("-", "--")
    ]


def find_problems(block: Block, targets: set[str]) -> list[str]:
    """Return what in a block that is not run cannot be right: unknown options, unknown make targets."""
    problems = []
    for words in split_commands(block.script):
        program = Path(words[0]).name
        if program == "kvlens":
            problems += [f"{' '.join(words[:3])}: {option} is unknown" for option in find_unknown_options(words)]
        elif program == "make":
            named = [word for word in words[1:] if re.fullmatch(r"[a-z]+", word)]
            problems += [f"make {word}: no such target" for word in named if word not in targets]
    return problems
