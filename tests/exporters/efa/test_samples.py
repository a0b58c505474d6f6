"""The sample stream: what is written, and the deltas that are read from it."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from types import ModuleType

import pytest

from exporters.efa.samples import (
    COUNTED,
    RESET,
    WRAPPED,
    Delta,
    Sample,
    SampleWriter,
    deltas,
    load_samples,
    parse_samples,
)
from exporters.efa.sysfs import EfaReader


def make(*readings: dict[str, int], device: str = "rdmap0s6") -> list[Sample]:
    return [Sample(n * 100, device, "1", counters) for n, counters in enumerate(readings)]


def measure(*readings: dict[str, int]) -> list[tuple[str, int, int, int, str]]:
    rows = deltas(make(*readings))
    return [(row.counter, row.start_unix_ns, row.end_unix_ns, row.delta, row.kind) for row in rows]


def test_counted_in_time_order() -> None:
    samples = make({"tx_bytes": 5}, {"tx_bytes": 8}, {"tx_bytes": 8})
    assert deltas(reversed(samples)) == [
        Delta("rdmap0s6", "1", "tx_bytes", 0, 100, 3, COUNTED),
        Delta("rdmap0s6", "1", "tx_bytes", 100, 200, 0, COUNTED),
    ]


def test_ports_and_devices_are_never_mixed() -> None:
    samples = make({"tx_bytes": 5}, {"tx_bytes": 6}) + make({"tx_bytes": 100}, {"tx_bytes": 200}, device="rdmap0s7")
    assert {(row.device, row.delta) for row in deltas(samples)} == {("rdmap0s6", 1), ("rdmap0s7", 100)}


@pytest.mark.parametrize("width", [32, 64])
def test_a_wrap_keeps_its_true_delta(width: int) -> None:
    before, after = (1 << width) - 10, 7
    assert measure({"tx_bytes": before, "tx_pkts": 50}, {"tx_bytes": after, "tx_pkts": 60}) == [
        ("tx_bytes", 0, 100, 17, WRAPPED),
        ("tx_pkts", 0, 100, 10, COUNTED),
    ]


def test_a_reset_counts_from_zero_for_the_whole_port() -> None:
    """After a driver reload a counter can already be past its old value: it is a reset all the same."""
    assert measure({"tx_bytes": 1000, "rx_drops": 2}, {"tx_bytes": 40, "rx_drops": 3}) == [
        ("tx_bytes", 0, 100, 40, RESET),
        ("rx_drops", 0, 100, 3, RESET),
    ]


def test_a_reset_near_the_end_of_the_range_is_no_wrap() -> None:
    """Everything that had a value fell: that is a reload, not a wrap of all counters at once."""
    rows = measure(
        {"tx_bytes": 2**32 - 5, "rx_bytes": 2**32 - 9, "rx_drops": 0}, {"tx_bytes": 1, "rx_bytes": 2, "rx_drops": 0}
    )
    assert [(row[3], row[4]) for row in rows] == [(1, RESET), (2, RESET), (0, RESET)]


def test_a_counter_missing_once_loses_nothing() -> None:
    assert measure({"a": 1, "b": 1}, {"b": 2}, {"a": 9, "b": 3}) == [
        ("b", 0, 100, 1, COUNTED),
        ("a", 0, 200, 8, COUNTED),
        ("b", 100, 200, 1, COUNTED),
    ]


def test_sum_of_deltas_is_the_traffic_across_a_wrap() -> None:
    total, values = 0, []
    for n in range(50):
        total += 5 * 10**8 * (n % 3)
        values.append({"tx_bytes": (3 * 2**30 + total) % 2**32, "rx_bytes": 1})
    assert sum(row[3] for row in measure(*values) if row[0] == "tx_bytes") == total


def test_lifespan_is_no_counter() -> None:
    assert measure({"lifespan": 10}, {"lifespan": 5}) == []


def test_half_a_line_and_foreign_lines_are_skipped_and_counted() -> None:
    good = json.dumps({"schema": 1, "unix_ns": 5, "device": "d", "port": "1", "counters": {"a": 1}, "later": "key"})
    samples, skipped = parse_samples([good, "", "[]", '{"schema":1}', good[:30]])
    assert samples == [Sample(5, "d", "1", {"a": 1})]
    assert skipped == 3


def test_stream_of_a_p5en(p5en: Path, trees: ModuleType) -> None:
    file = io.StringIO()
    writer = SampleWriter(EfaReader(p5en), file)
    writer.write_pass()
    trees.set_counters(p5en / "class/infiniband/rdmap85s0/ports/1/hw_counters", {"tx_bytes": 0x55 * 1_000_003 + 4096})
    writer.write_pass()
    records = [json.loads(line) for line in file.getvalue().splitlines()]
    assert len(records) == 2 * 32
    assert {record["schema"] for record in records} == {1}
    # The place of a device is told once.
    assert sum("info" in record for record in records) == 16
    info = next(record["info"] for record in records if record["device"] == "rdmap85s0" and "info" in record)
    assert info == {
        "pci_address": "0000:55:00.0",
        "numa_node": 0,
        "gpus": ["0000:59:00.0", "0000:5a:00.0"],
        "gpu_proximity": "pci_switch",
        "firmware": "0.0.0.0",
    }
    samples, skipped = parse_samples(file.getvalue().splitlines())
    assert skipped == 0
    moved = [(row.device, row.port, row.counter, row.delta) for row in deltas(samples) if row.delta]
    assert moved == [("rdmap85s0", "1", "tx_bytes", 4096)]


def test_stream_stops_at_its_size(p5en: Path) -> None:
    file = io.StringIO()
    writer = SampleWriter(EfaReader(p5en), file, max_bytes=1)
    writer.run(0.01, threading.Event())
    assert writer.passes == 1


def test_stream_stops_when_told(p5en: Path) -> None:
    stop = threading.Event()
    writer = SampleWriter(EfaReader(p5en), io.StringIO())
    thread = threading.Thread(target=writer.run, args=(0.01, stop))
    thread.start()
    while writer.passes < 3:
        stop.wait(0.01)
    stop.set()
    thread.join(timeout=30)
    assert not thread.is_alive()


def test_stream_ends_after_its_duration(p5en: Path) -> None:
    writer = SampleWriter(EfaReader(p5en), io.StringIO())
    writer.run(0.02, threading.Event(), duration_s=0.05)
    assert 1 <= writer.passes <= 3


def test_loading_a_file(tmp_path: Path) -> None:
    path = tmp_path / "host.jsonl"
    path.write_text('{"schema":1,"unix_ns":5,"device":"d","port":"1","counters":{"a":1}}\n{"sch')
    assert load_samples(path) == ([Sample(5, "d", "1", {"a": 1})], 1)
