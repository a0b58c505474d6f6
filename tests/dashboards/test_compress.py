"""Rules in fast motion: durations divided, everything else as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from dashboards.build import build
from dashboards.command import dashboards
from dashboards.compress import compress, shorten
from dashboards.config import Config

FILES = build(Config())
RULES = [path for path in FILES if path.startswith("rules/")]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("rate(kvlens_x_total[5m])", "rate(kvlens_x_total[10s])"),
        ("kvlens:x:rate5m offset 1h", "kvlens:x:rate5m offset 120s"),
        ("        for: 10m", "        for: 20s"),
        ("        for: 0m", "        for: 0s"),
        ("    interval: 15s", "    interval: 1s"),
        ("kvlens_x{le=\"5m\"} > 60", "kvlens_x{le=\"5m\"} > 60"),
    ],
)  # fmt: skip
def test_durations(text: str, short: str) -> None:
    assert compress(text, 30) == short
    assert compress(text, 1) == text


@pytest.mark.parametrize("path", RULES)
def test_names_and_limits_stay(path: str) -> None:
    def bare(text: str) -> str:
        return re.sub(r"(\[|offset |for: |interval: )\d+[smh]", r"\1", text)

    assert bare(compress(FILES[path], 30)) == bare(FILES[path])
    assert compress(FILES[path], 30) != FILES[path]


def test_shorten() -> None:
    assert [shorten("5m", 30), shorten("1h", 30), shorten("1s", 30)] == ["10s", "120s", "1s"]


def test_export_compresses_the_rules_only(tmp_path: Path) -> None:
    done = CliRunner().invoke(dashboards, ["export", "--out", str(tmp_path), "--compress", "30"])
    assert done.exit_code == 0, done.output
    assert "for: 20s" in (tmp_path / "rules/kvlens-alerts.yaml").read_text(encoding="utf-8")
    for path in FILES:
        if path.endswith(".json"):
            assert (tmp_path / path).read_text(encoding="utf-8") == FILES[path]
