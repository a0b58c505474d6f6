"""Runbooks: their commands exist, their links lead somewhere, and what they quote is real."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from analysis.doctor.engine import load_rules
from dashboards.build import build
from dashboards.config import Config

ROOT = Path(__file__).resolve().parents[2]
RUNBOOKS = sorted((ROOT / "docs/runbooks").glob("*.md"))
runbooks = pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
FILES = build(Config())


def load_doc_blocks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("doc_blocks", ROOT / "tests/project/doc_blocks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["doc_blocks"] = module
    spec.loader.exec_module(module)
    return module


doc_blocks = load_doc_blocks()


@runbooks
def test_commands_parse_and_their_options_exist(page: Path) -> None:
    blocks = doc_blocks.find_blocks(page)
    assert blocks
    for block in blocks:
        assert subprocess.run(["bash", "-n"], input=block.script, text=True, check=False).returncode == 0
        assert doc_blocks.find_problems(block, set()) == []


@runbooks
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@runbooks
def test_quoted_panels_and_doctor_rules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    confirm = text.split("## Confirm", 1)[1].split("## Change", 1)[0]
    dashed = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", confirm))
    assert dashed <= {rule.name for rule in load_rules()}
    everything = "".join(FILES.values())
    for title in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", text):
        assert title in everything, title


@runbooks
def test_alert_exists(page: Path) -> None:
    assert f"alert: {page.stem}\n" in FILES["rules/kvlens-alerts.yaml"]
