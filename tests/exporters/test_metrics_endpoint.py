"""The exemplar endpoint: span files that grow, rotate and break, and what is served from them."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from exporters.metrics_endpoint import TRACED, TracedHistograms, metrics, traced_name
from exporters.span_tail import SpanTail

PROMTOOL = shutil.which("promtool")
TRACE = "0af7651916cd43dd8448eb211c80319c"


def make_line(name: str, ms: float, engine: str = "D0", trace: str = TRACE, **attributes: Any) -> str:
    def encode(value: Any) -> dict[str, Any]:
        return {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}

    about = {"service.instance.id": engine, "kvlens.role": "decode", "kvlens.mode": "pull"}
    span = {
        "traceId": trace, "spanId": "00f067aa0ba902b7", "name": name, "startTimeUnixNano": "1000000000",
        "endTimeUnixNano": str(1_000_000_000 + round(ms * 1e6)),
        "attributes": [{"key": f"kv_transfer.{k}", "value": encode(v)} for k, v in attributes.items()],
    }  # fmt: skip
    resource = {"attributes": [{"key": k, "value": {"stringValue": v}} for k, v in about.items()]}
    document = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
    return json.dumps(document) + "\n"


def write(path: Path, *lines: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(lines))


def names(tail: SpanTail) -> list[str]:
    return [span["name"] for _, span in tail.poll()]


def test_the_tail_gives_each_whole_line_once(tmp_path: Path) -> None:
    tail = SpanTail(tmp_path / "later")
    assert names(tail) == []
    (tmp_path / "later").mkdir()
    first, second = tmp_path / "later" / "e-1-0.otlp.jsonl", tmp_path / "later" / "e-1-1.otlp.jsonl"
    line = make_line("post", 1)
    write(first, make_line("wire", 1), line[:50])
    assert names(tail) == ["wire"]
    write(first, line[50:])
    write(second, make_line("lease", 1))
    assert names(tail) == ["post", "lease"]
    first.unlink()
    write(second, "garbage\n", '{"resourceSpans": 3}\n', make_line("decode", 1))
    assert names(tail) == ["decode"]
    assert tail.bad_lines == 2
    second.write_text(make_line("handshake", 1))
    assert names(tail) == ["handshake"], "a file written anew is read from its begin"
    assert names(tail) == []


def test_what_is_there_already_can_be_left_out(tmp_path: Path) -> None:
    path = tmp_path / "e-1-0.otlp.jsonl"
    write(path, make_line("wire", 1))
    tail = SpanTail(tmp_path, skip_existing=True)
    write(path, make_line("post", 1))
    assert names(tail) == ["post"]


def read_exemplars(text: str) -> dict[tuple[str, ...], tuple[str, float]]:
    return {
        (sample.name, sample.labels["segment"]): (sample.exemplar.labels["trace_id"], sample.exemplar.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.exemplar is not None and "segment" in sample.labels
    }


def test_every_observation_leaves_its_trace_on_its_bucket(tmp_path: Path) -> None:
    path = tmp_path / "e-1-0.otlp.jsonl"
    write(
        path,
        make_line("wire", 30, outcome="ok", direction="READ", bytes=4096, descriptors=4),
        make_line("wire", 31, trace="1" * 32, outcome="ok", direction="READ", bytes=4096, descriptors=4),
        make_line("router.request", 500, mode="pull", first_byte_ns=1_200_000_000),
        make_line("decode", 900, finish_reason="finished_stopped"),
    )
    registry = CollectorRegistry(auto_describe=False)
    histograms = TracedHistograms(registry)
    histograms.add(SpanTail(tmp_path).poll())
    text = generate_latest(registry).decode()
    assert read_exemplars(text) == {("kvlens_traced_segment_seconds_bucket", "wire"): ("1" * 32, 0.031)}
    labels = {"engine_id": "D0", "role": "decode", "mode": "pull"}
    assert registry.get_sample_value("kvlens_traced_segment_seconds_count", {**labels, "segment": "wire"}) == 2
    assert registry.get_sample_value("kvlens_traced_time_to_first_token_seconds_sum", labels) == pytest.approx(0.2)
    assert registry.get_sample_value("kvlens_traced_transfer_descriptors_sum", {
        "engine_id": "D0", "role": "decode", "direction": "READ"}) == 8  # fmt: skip
    assert registry.get_sample_value("kvlens_traced_spans_total") == 4


def test_series_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exporters.metrics_endpoint.MAX_SERIES", 3)
    write(tmp_path / "e-1-0.otlp.jsonl", *(make_line("post", 1, engine=f"D{n}", outcome="ok") for n in range(5)))
    registry = CollectorRegistry()
    TracedHistograms(registry).add(SpanTail(tmp_path).poll())
    assert registry.get_sample_value("kvlens_traced_left_out_observations_total") == 2


def test_names_never_meet_those_of_the_engines() -> None:
    assert len({traced_name(metric) for metric in TRACED}) == len(TRACED)
    assert not {traced_name(metric) for metric in TRACED} & {metric.name for metric in TRACED}


@pytest.mark.skipif(PROMTOOL is None, reason="no promtool: apt-get install prometheus")
def test_the_command_serves_what_is_written_while_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    write(folder / "e-1-0.otlp.jsonl", make_line("post", 2, outcome="ok"))
    command = [str(Path(sys.executable).with_name("kvlens")), "metrics", "--traces", str(tmp_path)]
    command += ["--listen", "127.0.0.1:0", "--interval", "0.1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = process.stderr.readline().split(" on ")[1].strip()
            write(folder / "e-1-0.otlp.jsonl", make_line("wire", 3, outcome="ok", direction="READ"))
            text = fetch_until(url, 'segment="wire"', "application/openmetrics-text; version=1.0.0")
            assert read_exemplars(text)["kvlens_traced_segment_seconds_bucket", "post"] == (TRACE, 0.002)
            plain = fetch_until(url, 'segment="wire"', "text/plain")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, "check", "metrics"], input=plain.encode(), capture_output=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def fetch_until(url: str, wanted: str, accept: str) -> str:
    pause = threading.Event()
    for _ in range(200):
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept})) as answer:
            text: str = answer.read().decode()
        if wanted in text:
            return text
        pause.wait(0.1)
    raise AssertionError(f"{wanted} never served")


def test_bad_arguments_name_the_remedy(tmp_path: Path) -> None:
    done = CliRunner().invoke(metrics, ["--traces", str(tmp_path / "none")])
    assert (done.exit_code, "Try:" in done.output) == (1, True)
    done = CliRunner().invoke(metrics, ["--traces", str(tmp_path), "--listen", "nowhere"])
    assert (done.exit_code, "Try:" in done.output) == (2, True)
    done = CliRunner().invoke(metrics, ["--traces", str(tmp_path), "--once"])
    assert (done.exit_code, done.output.strip().endswith("# EOF")) == (0, True)
