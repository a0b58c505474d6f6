"""The lab's commands without engines: usage errors, faults of a run directory, manifest."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from lab.cli import lab, parse_faults
from lab.errors import LabError
from lab.faults import Fault, FaultFile, write_faults
from lab.manifest import make_manifest, write_manifest
from lab.options import make_pair_settings, make_workload
from lab.run import Pair


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(lab, list(arguments))
    # Errors come in a frame that wraps long paths.
    return result.exit_code, " ".join(result.output.replace("│", " ").split())


def test_fault_is_set_and_cleared_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    write_faults(path, {})
    assert invoke("fault", str(tmp_path), "wire=80", "post=5.5@decode", "--rank", "1") == (0, "")
    assert json.loads(path.read_text()) == {
        "wire": {"ms": 80.0, "engine": None, "rank": 1, "every": 1},
        "post": {"ms": 5.5, "engine": "decode", "rank": 1, "every": 1},
    }
    assert invoke("fault", str(tmp_path), "--clear") == (0, "")
    assert not FaultFile(path).is_on("wire")


@pytest.mark.parametrize("arguments", [(), ("wire=80", "--clear"), ("nowhere=1",), ("wire",), ("wire=soon",)])
def test_fault_that_cannot_be_meant_is_a_usage_error(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    write_faults(tmp_path / "faults.json", {})
    code, output = invoke("fault", str(tmp_path), *arguments)
    assert code == 2
    assert "Try:" in output


def test_fault_needs_the_directory_of_a_pair(tmp_path: Path) -> None:
    code, output = invoke("fault", str(tmp_path), "wire=80")
    assert code == 1
    assert "lab up" in output


def test_sites_are_listed(tmp_path: Path) -> None:
    code, output = invoke("fault", str(tmp_path), "--list")
    assert code == 0
    assert "decode_admission" in output


def test_fault_arguments() -> None:
    assert parse_faults(["wire=80", "post=1@D1"]) == {"wire": Fault(80.0), "post": Fault(1.0, "D1")}


@pytest.mark.parametrize("arguments", [("--input-lens", "200,x"), ("--rate", "0"), ("--mode", "both")])
def test_run_refuses_bad_settings_before_it_starts_anything(arguments: tuple[str, ...]) -> None:
    code, _ = invoke("run", *arguments)
    assert code == 2


def test_run_directory_in_use_is_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    code, output = invoke("run", "--out", str(tmp_path))
    assert code == 1
    assert "already holds a run" in output


@pytest.mark.parametrize("settings", [{"mode": "drag"}, {"stock": "x"}, {"tp": 0}, {"decoders": 0}])
def test_pair_refuses_what_it_does_not_know(settings: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(LabError):
        Pair(**settings, out=tmp_path)


def test_manifest_names_the_conditions(tmp_path: Path) -> None:
    engine = {"role": "prefill", "prefix_caching": False}
    write_manifest(tmp_path, make_manifest("push", [engine], {"policy": "round-robin"}, Path("/m/qwen3-1"), [{"a": 1}]))
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["mode"] == "push"
    assert {"kvlens", "vllm", "nixl", "kernel", "python"} <= set(manifest["versions"])
    assert manifest["machine"]["cores"] >= 1
    assert manifest["model"]["name"] == "qwen3-1"
    assert manifest["workloads"] == [{"a": 1}]
    assert manifest["routing"] == {"policy": "round-robin"}


def parse(command: str, *arguments: str) -> dict[str, object]:
    """Return what a command's function would be called with."""
    return dict(lab.commands[command].make_context(command, list(arguments)).params)


def test_options_become_workload_and_pair() -> None:
    options = parse(
        "run", "--mode", "bidirectional", "--retention", "8", "--threshold", "0", "--history", "sound, paused",
        "--gap", "2", "--gaps", "lognormal", "--stale", "drop", "--no-sticky", "--extra-config", '{"num_threads": 2}',
    )  # fmt: skip
    for name in ("warmup", "faults", "efa", "efa_root"):
        options.pop(name)
    workload, rest = make_workload(options)
    assert (workload.turns, workload.history, workload.think_s, workload.gaps) == (
        2,
        ("sound", "paused"),
        2,
        "lognormal",
    )
    # A pause is longer than D keeps the blocks.
    assert workload.pause_s == 10
    settings = make_pair_settings(rest)
    assert settings["extra_config"] == {
        "decoder_kv_blocks_ttl": 8, "kv_recompute_threshold": 0, "num_threads": 2
    }  # fmt: skip
    assert settings["conversations"] == {"stale": "drop", "edited": "trust", "sticky": False}
    assert "retention" not in settings


def test_defaults_leave_vllms_own_retention_and_threshold() -> None:
    settings = make_pair_settings(parse("up"))
    settings.pop("as_json")
    settings.pop("warmup")
    assert settings["extra_config"] == {}
    accepted = set(inspect.signature(Pair).parameters) | {"port"}
    assert set(settings) <= accepted


@pytest.mark.parametrize("arguments", [("--history", "sound,forged"), ("--gaps", "often"), ("--retention", "0")])
def test_conversations_that_cannot_be_meant_are_refused(arguments: tuple[str, ...]) -> None:
    assert invoke("run", *arguments)[0] == 2
