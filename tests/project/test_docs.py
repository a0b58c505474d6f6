"""The documentation is tested: bash blocks run or at least parse, links lead somewhere, generated pages are current."""

from __future__ import annotations

import gzip
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
    if page.exists()
]


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


doc_blocks = load(Path(__file__).with_name("doc_blocks.py"))
BLOCKS = {page: doc_blocks.find_blocks(page) for page in PAGES}
# With a home of its own an engine would inspect the model's class anew, in a process that imports all of vLLM for it.
VLLM_CACHE = str(Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vllm")
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))


def run_blocks(page: Path, kinds: set[str], folder: Path) -> None:
    """Run the blocks of these kinds of one page, in order, in one folder."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    for block in BLOCKS[page]:
        if block.kind not in kinds:
            continue
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", block.script],
            cwd=folder,
            env={"VLLM_CACHE_ROOT": VLLM_CACHE, **os.environ, "PATH": path, "HOME": str(folder), "COLUMNS": "140"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{page.name}:{block.line}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def write_sample_runs(folder: Path) -> None:
    """Copy the recorded runs to `runs/`, unpacked as an engine leaves them, for pages that need a run."""
    shutil.copytree(ROOT / "tests/fixtures/runs", folder / "runs")
    shutil.copytree(ROOT / "tests/fixtures/reuse", folder / "runs", dirs_exist_ok=True)  # conversations
    for packed in (folder / "runs").rglob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


def pages_with(kind: str) -> list[Path]:
    return [page for page in PAGES if any(block.kind == kind for block in BLOCKS[page])]


def list_quiet_pages() -> list[Any]:
    """Pages whose blocks need no engine; each `kvlens` in them starts a database of its own (1.5 s of CPU)."""
    pages = [page for page in pages_with("run") if page not in pages_with("engine")]
    commands = {
        page: [
            words[0]
            for block in BLOCKS[page]
            if block.kind == "run"
            for words in doc_blocks.split_commands(block.script)
        ]
        for page in pages
    }
    slow = {page for page in pages if commands[page].count("kvlens") > 1}
    return [pytest.param(page, id=page.name, marks=[pytest.mark.slow] if page in slow else []) for page in pages]


@pytest.mark.parametrize("page", list_quiet_pages())
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    write_sample_runs(tmp_path)
    run_blocks(page, {"run"}, tmp_path)


@pytest.mark.engine
@pytest.mark.parametrize("page", pages_with("engine"), ids=lambda page: page.name)
def test_blocks_run_with_engines(page: Path, tmp_path: Path) -> None:
    """A page with engine blocks runs as a whole: what follows may read the run that an engine block made."""
    run_blocks(page, {"run", "engine"}, tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCKS[page]], ids=lambda page: page.name)
def test_blocks_parse(page: Path) -> None:
    problems = []
    for block in BLOCKS[page]:
        done = subprocess.run(["bash", "-n"], input=block.script, capture_output=True, text=True, check=False)
        problems += [f"{page.name}:{block.line}: {done.stderr}"] if done.returncode else []
        problems += [f"{page.name}:{block.line}: {problem}" for problem in doc_blocks.find_problems(block, TARGETS)]
    assert not problems, "\n".join(problems)


def test_block_reader_knows_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    fences = (
        "```bash\necho a\n```\n",
        "<!-- engine -->\n```bash\necho b\n```\n\n",
        "<!-- cluster: parsed only -->\n\n",
    )
    page.write_text("".join((*fences, "```bash\nx \\\n  y # z\n```\n")))
    blocks = doc_blocks.find_blocks(page)
    assert [(block.kind, block.line) for block in blocks] == [("run", 1), ("engine", 5), ("parsed only", 11)]
    assert doc_blocks.split_commands(blocks[2].script) == [["x", "y"]]
    page.write_text("<!-- sometimes -->\n```bash\necho a\n```\n")
    with pytest.raises(ValueError, match="unknown marker"):
        doc_blocks.find_blocks(page)


def test_unknown_options_and_targets_are_found() -> None:
    block = doc_blocks.Block(
        ROOT / "x.md", 1, "kvlens breakdown RUN --no-such-option\nmake nonsense test\n", "parsed only"
    )
    assert doc_blocks.find_problems(block, TARGETS) == [
        "kvlens breakdown RUN: --no-such-option is unknown",
        "make nonsense: no such target",
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, missing


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    missing = [
        page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md" and f"({page.name})" not in index
    ]
    assert not missing, missing
