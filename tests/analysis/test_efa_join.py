"""Transfers joined with EFA counters: spans of the builder, samples that the real writer took of a sysfs tree."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner
from span_builder import EPOCH, MS, World

from analysis.commands.efa import efa
from analysis.efa import COUNTERS, accumulate, join_transfers, mark_tail
from analysis.efa_report import EfaReport, report_efa
from analysis.errors import KvlensError
from analysis.source import open_session
from exporters.efa.samples import SampleWriter
from exporters.efa.sysfs import EfaReader

SIZE = 1 << 20
STEP = 50 * MS
"""Time between two samples."""


def load_trees() -> ModuleType:
    path = Path(__file__).resolve().parents[1] / "exporters/efa/trees.py"
    spec = importlib.util.spec_from_file_location("kvlens_efa_trees_for_join", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


TREES = load_trees()


class Host:
    """A sysfs tree whose counters are moved by hand, and the stream that the real writer makes of it."""

    def __init__(self, root: Path, stream: Path, build: Callable[[Path], Path] = TREES.build_p5en) -> None:
        self.root, self.now = build(root), 0
        stream.parent.mkdir(parents=True, exist_ok=True)
        self._file = stream.open("a", encoding="utf-8")
        self._writer = SampleWriter(EfaReader(self.root, lambda: EPOCH + self.now), self._file)

    def set(self, device: str, **values: int) -> None:
        TREES.set_counters(self.root / "class/infiniband" / device / "ports/1/hw_counters", values)

    def move(self, device: str, **values: int) -> None:
        folder = self.root / "class/infiniband" / device / "ports/1/hw_counters"
        self.set(device, **{name: int((folder / name).read_text()) + value for name, value in values.items()})

    def sample(self, at: int) -> None:
        self.now = at
        self._writer.write_pass()

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path / "sys", tmp_path / "run/efa/host.jsonl")
    yield host
    host.close()


def add_wire(world: World, key: str, begin: int, length: int, **more: Any) -> None:
    attributes = {"outcome": "ok", "rank": 0, "direction": "WRITE", "bytes": SIZE, **more}
    world.emit(
        world.worker, "wire", begin, begin + length, request_id=f"cmpl-{key}-0-00000000", request_key=key,
        peer_engine_id="D0", landed_before_ns=("at", begin + length), **attributes,
    )  # fmt: skip


def report_of(world: World, tmp_path: Path) -> EfaReport:
    world.write(tmp_path / "run/traces")
    with open_session([tmp_path / "run"]) as session:
        return report_efa(session)


def row_of(report: EfaReport, key: str) -> dict[str, Any]:
    (row,) = report.transfers.filter(pl.col("request_key") == key).to_dicts()
    return row


def build_slow_run(host: Host, retransmits_at: tuple[int, ...] = (30,)) -> World:
    """Forty transfers of 5 ms, one between each two samples, the one of number 30 slow; trouble where asked."""
    world = World("push")
    for n in range(40):
        host.sample(n * STEP)
        add_wire(world, f"r{n}", n * STEP + 10 * MS, 35 * MS if n == 30 else 5 * MS)
        host.move("rdmap85s0", tx_bytes=SIZE, rdma_write_bytes=SIZE)
        if n in retransmits_at:
            host.move("rdmap86s0", retrans_pkts=7, retrans_timeout_events=1)
    host.sample(40 * STEP)
    return world


def test_bytes_by_rail_are_those_between_the_samples_around_the_window(host: Host, tmp_path: Path) -> None:
    world = World("push")
    host.sample(0)
    host.move("rdmap85s0", rdma_write_bytes=1)
    host.sample(STEP)
    add_wire(world, "a", STEP + MS, 5 * MS)
    host.move("rdmap85s0", rdma_write_bytes=3000, impaired_remote_conn_events=2)
    host.move("rdmap88s0", rdma_write_bytes=5000)
    host.sample(2 * STEP)
    host.move("rdmap85s0", rdma_write_bytes=9, retrans_pkts=9)
    host.sample(3 * STEP)
    row = row_of(report_of(world, tmp_path), "a")
    assert row["rails"] == [
        {"device": "rdmap88s0", "port": "1", "bytes": 5000},
        {"device": "rdmap85s0", "port": "1", "bytes": 3000},
    ]
    assert (row["moved"], row["impaired_remote_conn_events"], row["retrans_pkts"]) == (8000, 2, 0)
    assert row["to_ns"] - row["from_ns"] == STEP
    assert (row["others"], row["trouble"], row["flagged"]) == (0, True, False)


def test_window_across_samples_takes_all_between_its_brackets(host: Host, tmp_path: Path) -> None:
    world = World("push")
    for n in range(5):
        host.sample(n * STEP)
        host.move("rdmap85s0", rdma_write_bytes=100)
    add_wire(world, "a", STEP + MS, 2 * STEP)
    row = row_of(report_of(world, tmp_path), "a")
    assert row["to_ns"] - row["from_ns"] == 3 * STEP
    assert row["moved"] == 300


def test_slow_transfer_amid_retransmissions_is_flagged(host: Host, tmp_path: Path) -> None:
    report = report_of(build_slow_run(host), tmp_path)
    assert report.transfers.filter("flagged")["request_key"].to_list() == ["r30"]
    row = row_of(report, "r30")
    assert (row["retrans_pkts"], row["retrans_timeout_events"]) == (7, 1)
    (found,) = report.classes.to_dicts()
    assert (found["tail"], found["tail_trouble"], found["rest"], found["rest_trouble"]) == (1, 1, 39, 0)
    assert report.interval_ns == STEP


def test_slow_transfer_on_a_quiet_network_is_not_flagged(host: Host, tmp_path: Path) -> None:
    report = report_of(build_slow_run(host, retransmits_at=(3, 4)), tmp_path)
    assert report.transfers.filter("flagged").is_empty()
    (found,) = report.classes.to_dicts()
    assert (found["tail_trouble"], found["rest_trouble"]) == (0, 2)


def test_failed_transfer_amid_trouble_is_flagged(host: Host, tmp_path: Path) -> None:
    world = World("push")
    host.sample(0)
    add_wire(world, "a", MS, MS, outcome="error")
    host.move("rdmap85s0", unresponsive_remote_events=1)
    host.sample(STEP)
    assert row_of(report_of(world, tmp_path), "a")["flagged"]


@pytest.mark.parametrize("width", [32, 64])
def test_wraparound_keeps_the_true_bytes(host: Host, tmp_path: Path, width: int) -> None:
    world = World("push")
    host.set("rdmap85s0", rdma_write_bytes=(1 << width) - 1000)
    host.sample(0)
    add_wire(world, "a", MS, MS)
    host.set("rdmap85s0", rdma_write_bytes=3096)
    host.sample(STEP)
    row = row_of(report_of(world, tmp_path), "a")
    assert (row["moved"], row["resets"]) == (4096, 0)


def test_reset_is_told(host: Host, tmp_path: Path) -> None:
    world = World("push")
    host.sample(0)
    add_wire(world, "a", MS, MS)
    host.set("rdmap85s0", **{name: 5 for name in TREES.PORT_COUNTERS if name != "lifespan"})
    host.sample(STEP)
    report = report_of(world, tmp_path)
    assert row_of(report, "a")["resets"] == 1
    assert any("lower bounds" in note for note in report.notes)


def test_write_bytes_that_stay_at_zero_give_way_to_tx_bytes(tmp_path: Path) -> None:
    host = Host(tmp_path / "sys", tmp_path / "run/efa/host.jsonl", TREES.build_writes_as_sends)
    (device, *_) = sorted(path.name for path in (host.root / "class/infiniband").iterdir())
    host.set(device, rdma_write_bytes=0)
    world = World("push")
    host.sample(0)
    add_wire(world, "a", MS, MS)
    host.move(device, tx_bytes=SIZE, send_bytes=SIZE)
    host.sample(STEP)
    host.close()
    report = report_of(world, tmp_path)
    assert row_of(report, "a")["moved"] == SIZE
    assert report.counters["counter"].to_list() == ["tx_bytes"]
    assert any("rdma_write_bytes stayed at zero" in note for note in report.notes)


def test_reads_take_read_bytes(host: Host, tmp_path: Path) -> None:
    world = World("pull")
    host.sample(0)
    add_wire(world, "a", MS, MS, direction="READ")
    host.move("rdmap85s0", rdma_read_bytes=SIZE, rx_bytes=SIZE + 77)
    host.sample(STEP)
    assert row_of(report_of(world, tmp_path), "a")["moved"] == SIZE


def test_idle_devices_are_told(host: Host, tmp_path: Path) -> None:
    world = World("push")
    host.sample(0)
    add_wire(world, "a", MS, MS)
    host.sample(STEP)
    assert any("another way" in note for note in report_of(world, tmp_path).notes)


def test_concurrent_transfers_are_counted_and_told(host: Host, tmp_path: Path) -> None:
    world = World("push")
    host.sample(0)
    for n in range(3):
        add_wire(world, f"r{n}", (1 + n) * MS, 20 * MS)
    add_wire(world, "later", STEP + MS, MS)
    host.sample(STEP)
    host.sample(2 * STEP)
    report = report_of(world, tmp_path)
    assert [row_of(report, name)["others"] for name in ("r0", "r2", "later")] == [2, 2, 0]
    assert any("cannot be told apart" in note for note in report.notes)


def test_transfers_outside_the_samples_are_not_judged(host: Host, tmp_path: Path) -> None:
    world = World("push")
    add_wire(world, "before", 0, MS)
    host.sample(STEP)
    host.sample(2 * STEP)
    add_wire(world, "after", 3 * STEP, MS)
    report = report_of(world, tmp_path)
    assert report.transfers["trouble"].to_list() == [None, None]
    assert any("2 of 2 transfers lie outside" in note for note in report.notes)


def test_each_host_has_its_own_samples(tmp_path: Path) -> None:
    """The stream of another host says nothing about a transfer, and a host without a stream is told."""
    host = Host(tmp_path / "sys", tmp_path / "run/efa/host.jsonl")
    other = Host(tmp_path / "sys2", tmp_path / "run/efa/other.jsonl")
    world = World("push")
    for one in (host, other):
        one.sample(0)
    add_wire(world, "a", MS, MS)
    other.move("rdmap85s0", rdma_write_bytes=SIZE, retrans_pkts=5)
    for one in (host, other):
        one.sample(STEP)
        one.close()
    row = row_of(report_of(world, tmp_path), "a")
    assert (row["moved"], row["trouble"]) == (0, False)
    (tmp_path / "run/efa/host.jsonl").rename(tmp_path / "run/efa/third.jsonl")
    with pytest.raises(KvlensError, match="named after a host"):
        report_of(world, tmp_path)


def test_only_stream_of_the_only_host_may_have_another_name(host: Host, tmp_path: Path) -> None:
    world = World("push")
    host.sample(0)
    add_wire(world, "a", MS, MS)
    host.sample(STEP)
    (tmp_path / "run/efa/host.jsonl").rename(tmp_path / "run/efa/host-a.jsonl")
    report = report_of(world, tmp_path)
    assert row_of(report, "a")["trouble"] is False
    assert any("'host-a' is taken" in note for note in report.notes)


def test_run_without_samples_names_the_remedy(tmp_path: Path) -> None:
    world = World("push")
    add_wire(world, "a", MS, MS)
    world.write(tmp_path / "run/traces")
    done = CliRunner().invoke(efa, [str(tmp_path / "run")])
    assert done.exit_code == 1
    assert "kvlens lab run --efa" in " ".join(done.output.replace("│", " ").split())


def test_command_prints_tables_and_json(host: Host, tmp_path: Path) -> None:
    build_slow_run(host).write(tmp_path / "run/traces")
    done = CliRunner().invoke(efa, [str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "40 transfers, median 5.0 ms; a sample every 50 ms" in done.output
    assert "r30" in done.output
    assert "Coinciding is not causing" in done.output
    document = json.loads(CliRunner().invoke(efa, [str(tmp_path / "run"), "--json"]).output)
    assert document["schema"] == 1
    assert [row["request_key"] for row in document["transfers"] if row["flagged"]] == ["r30"]
    assert len(document["ports"]) == 16
    assert document["sampling"]["median_bracket_ms"] == 50


def test_half_a_line_is_skipped_and_told(host: Host, tmp_path: Path) -> None:
    world = build_slow_run(host)
    with (tmp_path / "run/efa/host.jsonl").open("a") as file:
        file.write('{"schema": 1, "uni')
    assert any("1 lines of the sample streams" in note for note in report_of(world, tmp_path).notes)


def test_tail_needs_enough_of_one_size() -> None:
    def make(count: int) -> pl.DataFrame:
        durations = [*range(1, count), 1000]
        frame = pl.DataFrame({"begin": [0] * count, "finish": durations, "bytes": [SIZE] * count})
        return mark_tail(frame.with_columns(direction=pl.lit("READ"), outcome=pl.lit("ok")))

    assert make(19)["tail"].to_list() == [None] * 19
    assert make(20)["tail"].to_list() == [False] * 19 + [True]


def test_join_agrees_with_a_plain_scan() -> None:
    """The as-of join finds what looking at every sample for every transfer finds."""
    times = [7 * n + n % 3 for n in range(200)]
    port = {"host": "h", "device": "d", "port": "1"}
    samples = pl.DataFrame([{**port, "unix_ns": at} for at in times])
    moves = pl.DataFrame(
        [{**port, "counter": "tx_bytes", "unix_ns": at, "delta": at % 11, "reset": 0} for at in times[1:]]
    )
    begins = [(37 * n) % 1200 for n in range(150)]
    wires = pl.DataFrame(
        {"host": "h", "begin": begins, "finish": [at + at % 90 for at in begins], "bytes": 5, "outcome": "ok",
         "direction": "WRITE"}
    )  # fmt: skip
    for row in join_transfers(wires, accumulate(samples, moves)).iter_rows(named=True):
        start = max(at for at in times if at <= row["begin"])
        end = min(at for at in times if at >= row["finish"])
        assert (row["from_ns"], row["to_ns"]) == (start, end)
        assert row["moved"] == sum(at % 11 for at in times if start < at <= end)
        flying = sum(w[0] <= end and w[1] >= start for w in wires.select("begin", "finish").iter_rows())
        assert row["others"] == flying - 1


def test_all_counters_are_the_drivers() -> None:
    assert set(COUNTERS) <= set(TREES.PORT_COUNTERS)
