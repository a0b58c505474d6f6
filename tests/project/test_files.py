"""Rules for the files themselves: no package-index hosts, small sources, a stable Makefile and CI entry."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Where packages come from is the installer's configuration, never the project's (joined, so that this file names none).
HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("download", "pytorch", "org"),
        ("pypi", "nvidia", "com"),
        ("huggingface", "co"),
        ("anaconda", "org"),
        ("npmjs", "org"),
        ("deb", "debian", "org"),
        ("ports", "ubuntu", "com"),
        ("archive", "ubuntu", "com"),
        ("githubusercontent", "com"),
        ("proxy", "golang", "org"),
        ("ghcr", "io"),
        ("docker", "io"),
    )
)
TARGETS = {"demo", "test", "check", "bench", "soak", "format", "lint", "typecheck", "docs", "clean"}
MAX_LINES = 350  # the house rule is "about 300"


def list_files() -> list[Path]:
    """Return the files of the checkout that are or would be committed."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for name in done.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()]


def test_no_file_names_a_package_host() -> None:
    found = []
    for path in list_files():
        text = path.read_bytes().decode("utf-8", "replace").lower()
        found += [f"{path.relative_to(ROOT)}: {host}" for host in HOSTS if host in text]
    assert not found, "\n".join(found)


def test_sources_are_small() -> None:
    packages = ("instrumented_connectors", "exporters", "dashboards", "analysis", "lab")
    long = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path in list_files()
        if path.suffix == ".py"
        and path.relative_to(ROOT).parts[0] in packages
        and (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    ]
    assert not long, "\n".join(long)


def test_makefile_has_the_promised_targets() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    defined = set(re.findall(r"^([a-z]+):", text, re.M))
    assert defined >= TARGETS


def test_ci_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert "make --no-print-directory test" in script.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_licence_is_apache() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
