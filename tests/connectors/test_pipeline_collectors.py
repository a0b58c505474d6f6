"""The real OTLP exporters against small real collectors that answer, refuse, hang, or aren't there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
from collectors import GrpcCollector, HttpCollector, Rotel, make_certificate, read_files, wait_until
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind

from instrumented_connectors.clock import Clock
from instrumented_connectors.export_queue import ExportCounts
from instrumented_connectors.pipeline import Pipeline, build_pipeline
from instrumented_connectors.spans import SpanFactory
from lab.ports import pick_free

EXPORT_TIMEOUT_S = 10
PROTOCOLS = ("grpc", "http/protobuf")
Collector = GrpcCollector | HttpCollector


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", request.param)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", str(EXPORT_TIMEOUT_S))
    monkeypatch.setenv("KVLENS_TRACES_DIR", str(tmp_path / "traces"))
    return str(request.param)


@pytest.fixture
def collector(protocol: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with GrpcCollector() if protocol == "grpc" else HttpCollector() as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.endpoint)
        yield running


def emit(pipeline: Pipeline, count: int, engine: str = "P0") -> None:
    """Emit spans with attributes of every kind that kvlens uses."""
    factory = SpanFactory(pipeline, Resource({"service.name": "test", "service.instance.id": engine}), Clock(), engine)
    for number in range(count):
        attributes = {"request_id": f"cmpl-{number}", "bytes": 1 << 40, "notif_only": bool(number % 2), "ms": 0.5}
        factory.emit("wire", number + 1, number, number + 5, attributes, parent_id=7, kind=SpanKind.INTERNAL)


def test_a_collector_gets_every_span(collector: Collector) -> None:
    pipeline = build_pipeline(["otlp"])
    emit(pipeline, 220)
    assert pipeline.flush(20)
    assert pipeline.counters() == {"otlp": ExportCounts(exported=220)}
    assert len(collector.spans) == len(set(collector.spans)) == 220
    pipeline.shutdown()


def test_specific_headers_and_compression_reach_the_collector(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-generic=1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-tenant=fleet-a")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    pipeline = build_pipeline(["otlp"])
    emit(pipeline, 5)
    assert pipeline.flush(20)
    (headers,) = collector.headers
    assert {name.lower(): value for name, value in headers.items()}["x-tenant"] == "fleet-a"
    assert len(collector.spans) == 5
    pipeline.shutdown()


@pytest.mark.skipif(which("openssl") is None, reason="makes its certificate with openssl")
@pytest.mark.parametrize("trusted", [True, False])
def test_tls_by_the_standard_variable(
    protocol: str, trusted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path / "collector.pem")
    # The HTTP exporter's client prefers these to the standard variable.
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
    if trusted:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(certificate))
    with (GrpcCollector if protocol == "grpc" else HttpCollector)(certificate) as running:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", running.endpoint)
        pipeline = build_pipeline(["otlp"])
        emit(pipeline, 20)
        assert pipeline.flush(20)
        pipeline.shutdown()
        assert pipeline.counters()["otlp"] == (ExportCounts(exported=20) if trusted else ExportCounts(failed=20))
        assert len(running.spans) == (20 if trusted else 0)


@pytest.mark.parametrize("status", [429, 503, 400])
def test_a_refusing_collector_is_bounded_and_counted(collector: Collector, status: int) -> None:
    collector.behaviour = status
    pipeline = build_pipeline(["otlp", "kvlens"])
    emit(pipeline, 220)
    assert wait_until(lambda: collector.requests > 0)
    pipeline.shutdown()
    counts = pipeline.counters()
    assert counts["otlp"].produced == counts["otlp"].lost == 220
    assert counts["otlp"].failed > 0
    assert counts["kvlens"] == ExportCounts(exported=220)
    assert collector.spans == []


def test_a_collector_that_recovers_gets_the_batch_that_it_refused(collector: Collector) -> None:
    collector.behaviour = 503
    pipeline = build_pipeline(["otlp"])
    emit(pipeline, 50)
    assert wait_until(lambda: collector.requests > 0)
    collector.behaviour = 200
    assert pipeline.flush(20)
    assert pipeline.counters() == {"otlp": ExportCounts(exported=50)}
    assert len(set(collector.spans)) == 50
    pipeline.shutdown()


def test_a_silent_collector_costs_a_bounded_shutdown(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    collector.behaviour = "hang"
    pipeline = build_pipeline(["otlp", "kvlens"])
    emit(pipeline, 50)
    assert wait_until(lambda: collector.requests > 0)
    emit(pipeline, 170)
    counts = pipeline.counters()["otlp"]
    assert (counts.queued, counts.dropped) == (100, 120)
    began = time.monotonic()
    pipeline.shutdown()
    assert time.monotonic() - began < EXPORT_TIMEOUT_S
    counts = pipeline.counters()["otlp"]
    assert counts.lost == counts.produced == 220
    assert 0 < counts.failed <= 50


def test_a_slow_collector_gets_what_fits_and_the_rest_is_counted(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "100")
    collector.behaviour = 0.3
    pipeline = build_pipeline(["otlp"])
    for _ in range(10):
        emit(pipeline, 40)
        time.sleep(0.05)
    assert pipeline.flush(30)
    counts = pipeline.counters()["otlp"]
    assert counts.exported + counts.dropped == counts.produced == 400
    assert counts.dropped > 0
    assert len(collector.spans) == counts.exported
    pipeline.shutdown()


def test_no_collector_at_all(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{pick_free(1)[0]}")
    pipeline = build_pipeline(["otlp", "kvlens"])
    emit(pipeline, 120)
    began = time.monotonic()
    pipeline.shutdown()
    assert time.monotonic() - began < EXPORT_TIMEOUT_S
    counts = pipeline.counters()
    assert counts["otlp"].lost == counts["otlp"].produced == 120
    assert counts["kvlens"] == ExportCounts(exported=120)


def test_rotel_gets_what_the_files_hold(protocol: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with HttpCollector() as sink, Rotel(sink, tmp_path) as rotel:
        endpoint = rotel.grpc_endpoint if protocol == "grpc" else rotel.http_endpoint
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        pipeline = build_pipeline(["otlp", "kvlens"])
        emit(pipeline, 333)
        pipeline.shutdown()
        assert pipeline.counters() == {name: ExportCounts(exported=333) for name in ("otlp", "kvlens")}
        assert wait_until(lambda: len(sink.spans) >= 333)
    written = read_files(tmp_path / "traces")
    assert len(written) == len(sink.spans) == 333
    assert set(written) == set(sink.spans)


def test_rotel_stopped_started_and_paused(protocol: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with HttpCollector() as sink, Rotel(sink, tmp_path) as rotel:
        endpoint = rotel.grpc_endpoint if protocol == "grpc" else rotel.http_endpoint
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        pipeline = build_pipeline(["otlp", "kvlens"])

        def emit_and_count(engine: str) -> tuple[int, int]:
            before = pipeline.counters()["otlp"]
            emit(pipeline, 60, engine)
            assert pipeline.flush(30)
            after = pipeline.counters()["otlp"]
            return after.exported - before.exported, after.failed - before.failed

        def recover(engine: str) -> bool:
            return any(emit_and_count(f"{engine}{number}") == (60, 0) for number in range(20))

        assert emit_and_count("up") == (60, 0)
        rotel.stop()
        assert emit_and_count("stopped") == (0, 60)
        rotel.start()
        assert recover("restarted")
        rotel.pause()
        assert emit_and_count("paused") == (0, 60)
        rotel.resume()
        assert recover("resumed")
        pipeline.shutdown()
        counts = pipeline.counters()
        produced = pipeline.produced
        assert counts["otlp"].exported + counts["otlp"].failed == produced
        assert counts["kvlens"] == ExportCounts(exported=produced)
        assert wait_until(lambda: len(set(sink.spans)) >= counts["otlp"].exported)
    written = set(read_files(tmp_path / "traces"))
    assert len(written) == produced
    assert set(sink.spans) <= written
    # What a paused collector's kernel had accepted may still come out of it: counted as failed, not lost.
    assert len(set(sink.spans)) >= counts["otlp"].exported
