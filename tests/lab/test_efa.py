"""EFA samples of a workload, from a sysfs tree."""

from __future__ import annotations

import importlib.util
import json
import socket
import sys
import time
from pathlib import Path

import pytest

from lab.efa import sample_efa

_SPEC = importlib.util.spec_from_file_location(
    "kvlens_efa_trees_for_lab", Path(__file__).resolve().parents[1] / "exporters/efa/trees.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
TREES = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = TREES
_SPEC.loader.exec_module(TREES)


def test_samples_enclose_the_block(tmp_path: Path) -> None:
    root = TREES.build_writes_as_sends(tmp_path / "sys")
    with sample_efa(tmp_path / "run", root, pytest.fail, interval_s=0.01):
        began = time.time_ns()
        time.sleep(0.05)
        ended = time.time_ns()
    path = tmp_path / "run/efa" / f"{socket.gethostname()}.jsonl"
    times = [json.loads(line)["unix_ns"] for line in path.read_text().splitlines()]
    assert min(times) <= began
    assert max(times) >= ended


def test_host_without_devices_is_told_once_and_writes_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    with sample_efa(tmp_path / "run", tmp_path, said.append):
        pass
    assert len(said) == 1
    assert "no EFA device" in said[0]
    assert not (tmp_path / "run").exists()


def test_samples_that_cannot_be_written_do_not_end_the_workload(tmp_path: Path) -> None:
    root = TREES.build_writes_as_sends(tmp_path / "sys")
    (tmp_path / "run").write_text("a file where the folder should be")
    said: list[str] = []
    with sample_efa(tmp_path / "run", root, said.append):
        served = True
    assert served
    assert "no more EFA samples" in said[0]


def test_failing_workload_ends_the_samples(tmp_path: Path) -> None:
    root = TREES.build_writes_as_sends(tmp_path / "sys")
    with pytest.raises(ValueError, match="workload"), sample_efa(tmp_path / "run", root, pytest.fail):
        raise ValueError("workload")
