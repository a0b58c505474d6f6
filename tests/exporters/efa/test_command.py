"""`kvlens efa-exporter` as a user runs it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from exporters.efa.command import efa_exporter

RUN = "from exporters.efa.command import efa_exporter; efa_exporter(prog_name='kvlens efa-exporter')"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(efa_exporter, [str(argument) for argument in arguments])


@contextmanager
def daemon(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def read_url(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(r"http://\S+", line):
            return found[0]
    raise AssertionError("ended without serving")


def test_daemon_serves_on_loopback_sees_hot_plug_and_ends_on_sigterm(p5en: Path) -> None:
    with daemon("--root", p5en, "--listen", "127.0.0.1:0") as process:
        url = read_url(process)
        assert url.startswith("http://127.0.0.1:")
        text = urllib.request.urlopen(url, timeout=30).read().decode()
        assert 'node_amazonefa_tx_bytes{device="rdmap85s0",port="1"} 8.5000255e+07' in text
        (p5en / "class/infiniband/rdmap85s0").unlink()
        text = urllib.request.urlopen(url, timeout=30).read().decode()
        assert "rdmap85s0" not in text
        assert 'kvlens_efa_device_changes_total{change="removed"} 1.0' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0


def test_listening_on_a_taken_port_names_the_remedy(p5en: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = invoke("--root", p5en, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    assert done.exit_code == 1
    assert "cannot listen on" in done.output
    assert "Try: another --listen address" in done.output


def test_samples_are_written_until_sigint(p5en: Path, tmp_path: Path) -> None:
    path = tmp_path / "run/efa/host.jsonl"
    with daemon("--root", p5en, "--samples", path, "--interval", "0.05") as process:
        while not (path.exists() and path.read_text().count("\n") >= 64):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 0
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert {record["device"] for record in records} >= {"rdmap85s0", "rdmap163s0"}


def test_once_prints_or_replaces_a_file(p5en: Path, tmp_path: Path) -> None:
    done = invoke("--root", p5en, "--once")
    assert done.exit_code == 0
    assert "# TYPE node_amazonefa_tx_bytes untyped" in done.output
    path = tmp_path / "efa.prom"
    assert invoke("--root", p5en, "--once", "--output", path, "--total-suffix").exit_code == 0
    assert "# TYPE node_amazonefa_tx_bytes_total counter" in path.read_text()


def test_json_has_devices_and_counters(p5en: Path) -> None:
    done = invoke("--root", p5en, "--json")
    document = json.loads(done.output)
    assert document["schema"] == 1
    assert len(document["devices"]) == 16
    port = next(port for port in document["ports"] if (port["device"], port["port"]) == ("rdmap85s0", "1"))
    assert (port["state"], port["rate_bytes_per_second"]) == ("ACTIVE", 25 * 10**9)
    assert port["counters"]["tx_bytes"] == 0x55 * 1_000_003


def test_a_host_without_efa_is_told_so_and_still_exported(tmp_path: Path) -> None:
    done = invoke("--root", tmp_path, "--once")
    assert done.exit_code == 0
    assert "No EFA device below" in done.output
    assert "kvlens_efa_devices 0.0" in done.output


@pytest.mark.parametrize(
    ("arguments", "code", "remedy"),
    [
        (["--root", "{tmp}/none"], 2, "Try: --root"),
        (["--root", "{tmp}", "--output", "x"], 2, "Try: add --once"),
        (["--root", "{tmp}", "--once", "--json"], 2, "Try: one command for each"),
        (["--root", "{tmp}", "--listen", "nonsense"], 2, "Try: --listen"),
        (["--root", "{tmp}", "--once", "--output", "{tmp}/no/folder/x.prom"], 1, "Try: a folder that exists"),
    ],
)
def test_bad_input_names_the_remedy(arguments: list[str], code: int, remedy: str, tmp_path: Path) -> None:
    done = invoke(*(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert done.exit_code == code
    assert remedy in done.output
