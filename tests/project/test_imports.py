"""The packages come from this checkout, and imports between them go one way."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("instrumented_connectors", "exporters", "dashboards", "analysis", "lab")

# What each package may import of the others. A name without a dot allows the whole package.
SHARED = frozenset(
    {
        "instrumented_connectors.catalogue",
        "instrumented_connectors.clock",
        "instrumented_connectors.identity",
        "instrumented_connectors.metrics.catalogue",
        "instrumented_connectors.metrics.measure",
    }
)
ALLOWED: dict[str, frozenset[str]] = {
    "instrumented_connectors": frozenset(),
    # The variables that both read are read by one function, which names the wrong value.
    "exporters": SHARED | {"instrumented_connectors.settings"},
    "dashboards": SHARED | {"exporters", "analysis"},
    "analysis": SHARED | {"exporters"},
    "lab": frozenset(PACKAGES),
}
# Modules that a core install may import (no engine, no lab).
ENGINE_ONLY = ("vllm", "nixl", "torch", "aiohttp", "tokenizers")


def list_sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def list_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module name) of every import statement in a file, also those inside functions."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    package = parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join((*base, *((node.module or "").split(".") if node.module else ())))
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def is_allowed(module: str, owner: str) -> bool:
    target = module.split(".", maxsplit=1)[0]
    if target not in PACKAGES or target == owner:
        return True
    return any(module == name or module.startswith(f"{name}.") for name in ALLOWED[owner])


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_imported_from_this_checkout(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__file__ is not None, f"{package} has no __init__.py"
    assert Path(module.__file__).resolve() == ROOT / package / "__init__.py"


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {module}"
        for path in list_sources(package)
        for line, module in list_imports(path)
        if not is_allowed(module, package)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ["analysis", "exporters", "dashboards"])
def test_core_package_needs_no_engine(package: str) -> None:
    """Importing every module of a core package loads neither vLLM nor anything else of an engine."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in list_sources(package)
        if path.name != "__main__.py"
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"loaded = [name for name in {ENGINE_ONLY!r} if name in sys.modules]\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
