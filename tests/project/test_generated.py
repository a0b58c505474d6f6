"""The checked-in generated pages equal their generator's output."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvlens_docs_generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = load_generator()


@pytest.mark.parametrize(
    ("page", "text"), GENERATOR.render_pages().items(), ids=lambda value: getattr(value, "name", "")
)
def test_page_is_current(page: Path, text: str) -> None:
    assert page.read_text(encoding="utf-8") == text, f"{page.name} is out of date: run `make docs`"


def test_section_marks_are_needed() -> None:
    with pytest.raises(ValueError, match="no section"):
        GENERATOR.replace_section("a page without marks", "counters", "table")
    begin, end = GENERATOR.BEGIN.format(name="x"), GENERATOR.END.format(name="x")
    page = f"a\n{begin}\nold\n{end}\nb"
    assert GENERATOR.replace_section(page, "x", "new") == f"a\n{begin}\nnew\n{end}\nb"
