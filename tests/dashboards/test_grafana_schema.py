"""The built dashboards against Grafana's own types, where they have been fetched (see grafana_schema.py)."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from grafana_schema import TSC, find_problems

from dashboards.boards import OVERVIEW
from dashboards.build import build
from dashboards.config import Config

pytestmark = pytest.mark.skipif(
    not (TSC.exists() and shutil.which("node")), reason="not fetched: python tests/dashboards/grafana_schema.py"
)


@pytest.fixture(scope="module")
def boards() -> dict[str, Any]:
    return {path: json.loads(text) for path, text in build(Config()).items() if path.endswith(".json")}


def test_dashboards_have_grafanas_types(boards: dict[str, Any]) -> None:
    assert find_problems(boards) == []


def test_what_grafana_does_not_know_is_found(boards: dict[str, Any]) -> None:
    board = boards[f"{OVERVIEW.uid}.json"]
    broken = {"unknown key": {**board, "colour": "blue"}, "wrong value": json.loads(json.dumps(board))}
    broken["wrong value"]["panels"][1]["options"]["graphMode"] = "volcano"
    problems = "\n".join(find_problems(broken))
    assert "volcano" in problems
    assert "'\"colour\"' does not exist" in problems
