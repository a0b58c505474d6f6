"""What Prometheus sees: names, labels, promtool's judgement, and the cost of a scrape."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from pathlib import Path
from types import ModuleType

import pytest
from prometheus_client.parser import text_string_to_metric_families

from exporters.efa.collector import EfaCollector, render_text, write_text_file
from exporters.efa.sysfs import EfaReader

promtool = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(promtool is None, reason="no promtool: apt-get install prometheus")


def scrape(root: Path, **options: bool) -> str:
    return render_text(EfaCollector(EfaReader(root), **options)).decode()


def read_samples(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found = samples.setdefault(sample.name, {})
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found, f"{sample.name} {labels} twice"
            found[labels] = sample.value
    return samples


@needs_promtool
@pytest.mark.parametrize("total_suffix", [False, True])
def test_promtool_is_content(any_root: Path, total_suffix: bool) -> None:
    text = scrape(any_root, total_suffix=total_suffix)
    assert promtool is not None
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_counter_of_every_port_is_exported_once(any_root: Path) -> None:
    scan = EfaReader(any_root).scan()
    samples = read_samples(scrape(any_root))
    for reading in scan.readings:
        for counter, value in reading.counters.items():
            if counter == "rdma_flush_wrs":  # hidden by the invalid name before it, see below
                continue
            labels = (("device", reading.device), ("port", reading.port))
            assert samples["node_amazonefa_" + re.sub(r"\W", "_", counter)][labels] == value


def test_unknown_counters_are_exported_and_collisions_are_not_doubled(tmp_path: Path, trees: ModuleType) -> None:
    text = scrape(trees.build_newer_driver(tmp_path))
    samples = read_samples(text)
    labels = (("device", "efa_0"), ("port", "1"))
    assert samples["node_amazonefa_srd_paths_switched"] == {labels: 4}
    assert samples["node_amazonefa_rdma_flush_wrs"] == {labels: 2}
    assert "# HELP node_amazonefa_srd_paths_switched Counter srd_paths_switched of the EFA driver." in text


def test_write_bytes_may_stay_at_zero_while_tx_bytes_moves(tmp_path: Path, trees: ModuleType) -> None:
    text = scrape(trees.build_writes_as_sends(tmp_path))
    samples = read_samples(text)
    assert set(samples["node_amazonefa_rdma_write_bytes"].values()) == {0}
    assert set(samples["node_amazonefa_tx_bytes"].values()) == {7e9}
    assert "tx_bytes moves then" in text


def test_names_with_and_without_suffix(p5en: Path) -> None:
    assert "# TYPE node_amazonefa_tx_bytes untyped" in scrape(p5en)
    with_suffix = scrape(p5en, total_suffix=True)
    assert "# TYPE node_amazonefa_tx_bytes_total counter" in with_suffix
    assert "# TYPE node_amazonefa_lifespan gauge" in with_suffix


def test_info_maps_ports_to_their_place(p5en: Path) -> None:
    samples = read_samples(scrape(p5en))
    info = {dict(labels)["device"]: dict(labels) for labels in samples["node_amazonefa_info"]}
    assert info["rdmap85s0"] == {
        "device": "rdmap85s0",
        "port": "1",
        "pci_address": "0000:55:00.0",
        "numa_node": "0",
        "gpus": "0000:59:00.0,0000:5a:00.0",
        "gpu_proximity": "pci_switch",
        "firmware": "0.0.0.0",
        "state": "ACTIVE",
        "rate": "200 Gb/s",
    }
    assert len(samples["node_amazonefa_gpu_info"]) == 32
    assert set(samples["node_amazonefa_link_up"].values()) == {1}
    assert set(samples["node_amazonefa_link_rate_bytes_per_second"].values()) == {25e9}


def test_own_metrics_are_there_before_anything_happened(p5en: Path) -> None:
    samples = read_samples(scrape(p5en))
    assert samples["kvlens_efa_devices"] == {(): 16}
    assert {dict(labels)["reason"]: value for labels, value in samples["kvlens_efa_read_errors_total"].items()} == {
        "vanished": 0, "missing": 0, "permission": 0, "io": 0, "parse": 0,
    }  # fmt: skip
    assert set(samples["kvlens_efa_device_changes_total"].values()) == {0}


def test_errors_add_up_over_scrapes(tmp_path: Path, trees: ModuleType) -> None:
    collector = EfaCollector(EfaReader(trees.build_without_counters(tmp_path)))
    render_text(collector)
    samples = read_samples(render_text(collector).decode())
    assert samples["kvlens_efa_read_errors_total"][("reason", "missing"),] == 2


def test_text_file_is_replaced_whole_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "efa.prom"
    path.write_text("old")
    write_text_file(path, b"new\n")
    assert path.read_text() == "new\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert [entry.name for entry in tmp_path.iterdir()] == ["efa.prom"]


def test_text_file_survives_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "efa.prom"
    path.write_text("old")

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(OSError, match="No space"):
        write_text_file(path, b"new\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["efa.prom"]
    assert path.read_text() == "old"


def test_cost_of_64_devices_is_printed(tmp_path: Path, trees: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Print the CPU time of a scrape (aim: under 50 ms). Asserted is only that it grows no faster than the devices."""
    costs = {}
    for count in (8, 64):
        collector = EfaCollector(EfaReader(trees.build_many(tmp_path / str(count), count)))
        render_text(collector)
        times = []
        for _ in range(7):
            before = time.process_time()
            text = render_text(collector)
            times.append(time.process_time() - before)
        costs[count] = min(times)
        median = sorted(times)[len(times) // 2]
    samples = sum(len(found) for found in read_samples(text.decode()).values())
    with capsys.disabled():
        print(
            f"\n[efa] scrape of 64 devices, {samples} samples: {costs[64] * 1e3:.1f} ms CPU (best of 7, median "
            f"{median * 1e3:.1f} ms, aim < 50 ms); 8 devices: {costs[8] * 1e3:.1f} ms"
        )
    assert costs[64] < 8 * costs[8] * 2
