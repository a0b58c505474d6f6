"""Trees of several hosts for the tests of this folder."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def load(name: str) -> ModuleType:
    """Import a helper beside this file; test files are imported one by one, without a package around them."""
    spec = importlib.util.spec_from_file_location(f"kvlens_efa_{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TREES = load("trees")


@pytest.fixture(scope="session")
def trees() -> ModuleType:
    return TREES


@pytest.fixture(params=list(TREES.BUILDERS))
def any_root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the sysfs root of each kind of host in turn."""
    return TREES.BUILDERS[request.param](tmp_path)


@pytest.fixture
def p5en(tmp_path: Path) -> Path:
    return TREES.build_p5en(tmp_path)
