"""How an engine is started: command line, environment, ports, cores, run directory."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from lab.engine import Engine, EngineSpec, assign_cores, build_command, build_environment, connector_config
from lab.errors import LabError, PortTakenError
from lab.layout import choose_run_directory, make_specs
from lab.ports import EPHEMERAL, choose_port, is_free, pick_free


def spec(tmp_path: Path, **more: Any) -> EngineSpec:
    fields: dict[str, Any] = {
        "role": "prefill", "id": "P0", "mode": "pull", "port": 8100, "side_channel_port": 5600,
        "model": tmp_path / "model", "log": tmp_path / "p.log",
    }  # fmt: skip
    return EngineSpec(**{**fields, **more})


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


def test_command_starts_the_servers_module_with_the_connector(tmp_path: Path) -> None:
    command = build_command(spec(tmp_path, tensor_parallel=2, prefix_caching=True))
    assert command[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert option(command, "--port") == "8100"
    assert option(command, "--tensor-parallel-size") == "2"
    assert "--enable-prefix-caching" in command
    assert "--otlp-traces-endpoint" not in command
    assert json.loads(option(command, "--kv-transfer-config"))["engine_id"] == "P0"


def test_traces_endpoint_is_passed_on(tmp_path: Path) -> None:
    command = build_command(spec(tmp_path, otlp_endpoint="http://127.0.0.1:4317"))
    assert option(command, "--otlp-traces-endpoint") == "http://127.0.0.1:4317"


@pytest.mark.parametrize(
    ("mode", "instrumented", "name"),
    [
        ("pull", True, "NixlPullConnector"),
        ("push", False, "NixlPushConnector"),
        ("bidirectional", True, "NixlBidirectionalConnector"),
        ("bidirectional", False, "NixlPullConnector"),
    ],
)
def test_connector_of_a_mode(tmp_path: Path, mode: str, instrumented: bool, name: str) -> None:
    config = connector_config(spec(tmp_path, mode=mode, instrumented=instrumented, connector_extra={"a": 1}))
    assert config["kv_connector"] == name
    assert config.get("kv_connector_module_path") == ("instrumented_connectors" if instrumented else None)
    extra = config["kv_connector_extra_config"]
    assert (extra["num_threads"], extra["a"]) == (0, 1)
    assert extra.get("bidirectional_kv_xfer") == (True if mode == "bidirectional" else None)


def test_recompute_policy_brings_its_repair_and_says_so(tmp_path: Path) -> None:
    plain = spec(tmp_path, mode="bidirectional")
    assert "kv_load_failure_policy" not in connector_config(plain)
    chosen = spec(tmp_path, mode="bidirectional", load_failure_policy="recompute")
    assert connector_config(chosen)["kv_load_failure_policy"] == "recompute"
    assert build_environment(chosen, {})["KVLENS_LAB_READBACK_ONCE"] == "1"
    assert [Engine(one).describe()["stock_fixes"] for one in (plain, chosen)] == [[], ["readback_once"]]


def test_role_decides_the_connectors_role(tmp_path: Path) -> None:
    assert connector_config(spec(tmp_path))["kv_role"] == "kv_producer"
    assert connector_config(spec(tmp_path, role="decode"))["kv_role"] == "kv_consumer"


def test_environment_holds_the_callers_and_the_specs(tmp_path: Path) -> None:
    env = build_environment(
        spec(tmp_path, traces=tmp_path / "traces", fault_file=tmp_path / "f.json", env={"OMP_NUM_THREADS": "2"}),
        {"HOME": "/home", "OTEL_TRACES_EXPORTER": "otlp"},
    )
    assert env["HOME"] == "/home"
    assert env["OTEL_TRACES_EXPORTER"] == "otlp"
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600"
    assert env["KVLENS_TRACES_DIR"] == str(tmp_path / "traces")
    assert env["KVLENS_LAB_FAULT_FILE"] == str(tmp_path / "f.json")
    assert (env["KVLENS_LAB"], env["KVLENS_LAB_ROLE"], env["KVLENS_LAB_ENGINE"]) == ("1", "prefill", "P0")
    assert "KVLENS_LAB_STREAM_PARAMS" not in env


@pytest.mark.parametrize(
    ("role", "index", "ranks", "cores", "expected"),
    [
        ("prefill", 0, 1, [0, 1], (0,)),
        ("decode", 0, 1, [0, 1], (1,)),
        ("decode", 1, 1, [0, 1], (1,)),
        ("decode", 1, 1, [2, 5, 7], (7,)),
        ("decode", 2, 1, [2, 5, 7], (5,)),
        ("prefill", 0, 2, [0, 1], ()),
        ("prefill", 0, 1, [0], ()),
    ],
)
def test_engines_share_cores_only_where_they_must(
    role: str, index: int, ranks: int, cores: list[int], expected: tuple[int, ...]
) -> None:
    assert assign_cores(role, index, ranks, cores) == expected


def test_pair_has_distinct_ports_and_instruments_the_other_side(tmp_path: Path) -> None:
    shared = {"mode": "push", "model": tmp_path, "tensor_parallel": 1}
    specs = make_specs(shared, "d", 2, set(), tmp_path)
    assert [(one.role, one.id, one.instrumented) for one in specs] == [
        ("prefill", "P0", True), ("decode", "D0", False), ("decode", "D1", False),
    ]  # fmt: skip
    ports = [port for one in specs for port in (one.port, one.side_channel_port)]
    assert len(set(ports)) == 6
    assert not any(one.instrumented for one in make_specs(shared, "both", 1, set(), tmp_path))


def test_taken_port_is_refused_with_its_purpose() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(PortTakenError, match=rf"port {port} for the router"):
            choose_port(port, "the router")
    assert choose_port(port, "the router") == port


def test_free_ports_are_distinct_and_avoid_what_is_taken() -> None:
    ports = pick_free(20)
    assert len(set(ports)) == 20
    assert not set(pick_free(20, avoid=ports)) & set(ports)


def test_free_ports_are_none_that_the_kernel_gives_to_others() -> None:
    low, high = (int(one) for one in EPHEMERAL.read_text().split())
    with socket.socket() as given:
        given.bind(("127.0.0.1", 0))
        assert low <= given.getsockname()[1] <= high
    assert not [port for port in pick_free(200) if low <= port <= high]


def test_run_directory_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    assert choose_run_directory("pull", tmp_path) == tmp_path
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(LabError, match="already holds a run"):
        choose_run_directory("pull", tmp_path)


def test_engine_describes_what_a_client_needs(tmp_path: Path) -> None:
    about = Engine(spec(tmp_path)).describe()
    assert {"role", "id", "url", "side_channel_host", "side_channel_port"} <= set(about)
    assert json.dumps(about)
