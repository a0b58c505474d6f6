"""Children are started apart, say why they ended, and are gone after the stop - with their own children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lab.errors import ProcessDiedError
from lab.process import Child, group_members, stop_all

# A server with a worker; both ignore SIGTERM when asked to.
FAMILY = """
import signal, subprocess, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "worker" not in sys.argv:
    subprocess.Popen([sys.executable, __file__, "worker", *sys.argv[1:]])
print("started", flush=True)
time.sleep(600)
"""


@pytest.fixture
def family(tmp_path: Path) -> Callable[..., Child]:
    script = tmp_path / "family.py"
    script.write_text(FAMILY)

    def start(*arguments: str) -> Child:
        child = Child("family", [sys.executable, str(script), *arguments], tmp_path / "logs" / "family.log")
        child.start()
        child.wait_ready(lambda: child.tail().count("started") == 2, 30, lambda: None)
        return child

    return start


@pytest.mark.parametrize("arguments", [(), ("stubborn",)])
def test_stop_leaves_nothing_of_the_group(family: Callable[..., Child], arguments: tuple[str, ...]) -> None:
    child = family(*arguments)
    assert len(group_members(child.pid)) == 2
    child.stop(grace_s=1.0)
    assert group_members(child.pid) == []
    assert not child.is_alive()


def test_worker_of_a_killed_server_is_stopped_too(family: Callable[..., Child]) -> None:
    child = family()
    os.kill(child.pid, signal.SIGKILL)
    while child.is_alive():
        time.sleep(0.01)
    assert len(group_members(child.pid)) == 1
    stop_all([child], grace_s=1.0)
    assert group_members(child.pid) == []


def test_kill_is_at_once_and_for_all(family: Callable[..., Child]) -> None:
    child = family("stubborn")
    child.kill()
    deadline = time.monotonic() + 10
    while group_members(child.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert group_members(child.pid) == []


def test_stop_without_a_start_is_nothing(tmp_path: Path) -> None:
    Child("never", ["true"], tmp_path / "log").stop()


def test_child_that_ends_early_shows_its_log(tmp_path: Path) -> None:
    child = Child("engine", [sys.executable, "-c", "print('no such device'); raise SystemExit(3)"], tmp_path / "e.log")
    child.start()
    with pytest.raises(ProcessDiedError) as error:
        child.wait_ready(lambda: False, 30, lambda: None)
    assert "engine ended with exit status 3" in str(error.value)
    assert "no such device" in str(error.value)
    assert error.value.remedy == f"read {tmp_path / 'e.log'}"


def test_child_that_is_never_ready_is_an_error(tmp_path: Path) -> None:
    child = Child("engine", [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "e.log")
    child.start()
    try:
        with pytest.raises(ProcessDiedError, match="not ready after 0 s"):
            child.wait_ready(lambda: False, 0.2, lambda: None)
    finally:
        child.stop(grace_s=1.0)


def test_child_has_its_core_priority_and_group(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    child = Child("one", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"],
                  tmp_path / "log", cores=[core], nice=3)  # fmt: skip
    child.start()
    try:
        child.wait_ready(lambda: "up" in child.tail(), 30, lambda: None)
        process = psutil.Process(child.pid)
        assert process.cpu_affinity() == [core]
        assert process.nice() == min(19, psutil.Process().nice() + 3)
        assert os.getpgid(child.pid) == child.pid != os.getpgid(0)
    finally:
        child.stop(grace_s=1.0)


def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    parent = f"""
import sys, time
from pathlib import Path
from lab.process import Child
code = "import time; print('up', flush=True); time.sleep(600)"
child = Child("one", [sys.executable, "-c", code], Path({str(log)!r}))
child.start()
child.wait_ready(lambda: "up" in child.tail(), 30, lambda: None)
print(child.pid, flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while group_members(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert group_members(pid) == []
