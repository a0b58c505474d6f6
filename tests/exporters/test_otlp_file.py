"""The file exporter: equal to the protobuf encoder, bounded, crash-safe, fork-safe and never in the way."""

import base64
import errno
import json
import logging
import os

import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from exporters.otlp_file import OTLPFileSpanExporter
from exporters.otlp_json import MAX_LINE_CHARS, encode_lines

RESOURCE = Resource({"service.name": "vllm-decode", "service.instance.id": "D0", "process.pid": 7}, "https://schema/1")
SCOPE = InstrumentationScope("kvlens", "0.1.0", "https://schema/2", {"a": 1})


def make_span(name="wire", number=1, attributes=None, resource=RESOURCE, **fields):
    context = SpanContext(0xABC0000000000000000000000000 + number, number, False, TraceFlags(1))
    return ReadableSpan(
        name,
        context=context,
        resource=resource,
        attributes={"kv_transfer.bytes": 1 << 53} if attributes is None else attributes,
        instrumentation_scope=fields.pop("scope", SCOPE),
        start_time=1_700_000_000_000_000_000 + number,
        end_time=1_700_000_000_000_001_000 + number,
        **fields,
    )


def make_rich_span():
    far = SpanContext(5, 6, True, TraceFlags(1), TraceState([("k", "v"), ("w", "x")]))
    return make_span(
        attributes={
            "s": 'q"\\\n\u2028é',
            "i": -3,
            "t": True,
            "f": 0.5,
            "z": 0,
            "e": "",
            "l": [1, 2],
            "n": [],
            "x": float("nan"),
        },
        parent=far,
        kind=SpanKind.CONSUMER,
        status=Status(StatusCode.ERROR, "boom"),
        events=[Event("seen", {"n": 1}, 12345)],
        links=[Link(far, {"why": "peer"})],
    )


def decode_protobuf(spans):
    """What MessageToDict says, with ids in hexadecimal as OTLP JSON wants them."""

    def fix(node):
        if isinstance(node, list):
            return [fix(item) for item in node]
        if not isinstance(node, dict):
            return node
        ids = ("traceId", "spanId", "parentSpanId")
        return {k: base64.b64decode(v).hex() if k in ids else fix(v) for k, v in node.items()}

    return fix(MessageToDict(encode_spans(spans), use_integers_for_enums=True))


def read_spans(directory):
    lines = [line for path in sorted(directory.iterdir()) for line in path.read_text().splitlines()]
    groups = [scope for line in lines for one in json.loads(line)["resourceSpans"] for scope in one["scopeSpans"]]
    return [span for group in groups for span in group["spans"]]


@pytest.mark.parametrize("span", [make_span(), make_rich_span(), make_span(scope=None), make_span(attributes={})])
def test_line_equals_the_protobuf_encoding(span):
    ((line, count),) = encode_lines([span])
    assert count == 1
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == decode_protobuf([span])


def test_batch_of_one_resource_equals_the_protobuf_encoding():
    spans = [make_span(number=n) for n in range(1, 20)]
    ((line, _),) = encode_lines(spans)
    assert json.loads(line) == decode_protobuf(spans)


def test_two_resources_are_two_lines():
    other = Resource({"service.name": "vllm-prefill"})
    lines = list(encode_lines([make_span(), make_span(number=2, resource=other), make_span(number=3)]))
    assert [count for _, count in lines] == [2, 1]


def test_lines_stay_below_the_receivers_limit():
    lines = list(encode_lines([make_span(number=n, attributes={"s": "x" * 50_000}) for n in range(1, 40)]))
    assert len(lines) > 1
    assert max(len(line) for line, _ in lines) < MAX_LINE_CHARS + 60_000
    assert sum(count for _, count in lines) == 39


def test_text_that_is_not_unicode_does_not_lose_the_line():
    ((line, _),) = encode_lines([make_span(attributes={"s": "a\ud800b"})])
    assert '"a?b"' in line.decode()


def test_file_name_and_contents(tmp_path):
    exporter = OTLPFileSpanExporter(tmp_path / "new" / "traces")
    assert exporter.export([make_span(), make_span(number=2)]) is SpanExportResult.SUCCESS
    assert exporter.export([make_span(number=3)]) is SpanExportResult.SUCCESS
    assert exporter.path == tmp_path / "new" / "traces" / f"vllm-decode-D0-{os.getpid()}-0.otlp.jsonl"
    assert [int(span["spanId"], 16) for span in read_spans(exporter.directory)] == [1, 2, 3]
    assert (exporter.exported_spans, exporter.lost_spans) == (3, 0)
    exporter.shutdown()
    assert exporter.export([make_span()]) is SpanExportResult.FAILURE
    assert exporter.lost_spans == 1


def test_default_directory_is_logged_once_and_created(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("KVLENS_TRACES_DIR", raising=False)
    exporter = OTLPFileSpanExporter()
    exporter.export([make_span()])
    exporter.export([make_span()])
    assert exporter.directory == tmp_path / "kvlens" / "traces"
    assert len(read_spans(exporter.directory)) == 2
    assert [str(exporter.directory) in record.getMessage() for record in caplog.records] == [True]


def test_rotation_keeps_the_newest_files_and_counts(tmp_path):
    exporter = OTLPFileSpanExporter(tmp_path, max_bytes=2_000, max_files=3)
    for number in range(1, 41):
        exporter.export([make_span(number=number)])
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 3
    assert max(sizes) <= 2_000
    kept = [int(span["spanId"], 16) for span in read_spans(tmp_path)]
    assert 40 in kept
    assert len(kept) < 40
    assert exporter.deleted_files > 0
    assert exporter.deleted_bytes + sum(sizes) == exporter.written_bytes
    assert (exporter.exported_spans, exporter.lost_spans) == (40, 0)


def test_bound_covers_files_of_dead_processes_but_not_of_living_ones(tmp_path):
    dead = tmp_path / "vllm-decode-D9-1-0.otlp.jsonl"
    dead.write_bytes(b"x" * 50_000)
    os.utime(dead, (1, 1))
    foreign = tmp_path / "notes.jsonl"
    foreign.write_bytes(b"x" * 50_000)
    living = OTLPFileSpanExporter(tmp_path, max_bytes=2_000, max_files=3)
    living.export([make_span(resource=Resource({"service.name": "vllm-prefill"}))])
    os.utime(living.path, (2, 2))
    exporter = OTLPFileSpanExporter(tmp_path, max_bytes=2_000, max_files=3)
    for number in range(1, 41):
        exporter.export([make_span(number=number)])
    assert not dead.exists()
    assert foreign.exists()
    assert living.path.exists()


def test_environment_sets_the_bounds_and_bad_values_are_named(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("KVLENS_FILE_MAX_BYTES", "lots")
    monkeypatch.setenv("KVLENS_FILE_MAX_FILES", "2")
    monkeypatch.setenv("KVLENS_TRACES_DIR", str(tmp_path))
    OTLPFileSpanExporter().export([make_span()])
    assert "KVLENS_FILE_MAX_BYTES='lots'" in caplog.text
    monkeypatch.setenv("KVLENS_FILE_MAX_BYTES", "1500")
    exporter = OTLPFileSpanExporter()
    for number in range(1, 20):
        exporter.export([make_span(number=number)])
    assert len([path for path in tmp_path.iterdir() if path != exporter.path]) <= 2


def test_unwritable_directory_loses_counted_spans_and_recovers(tmp_path, caplog):
    now = [0.0]
    blocker = tmp_path / "traces"
    blocker.write_text("a file where the directory should be")
    exporter = OTLPFileSpanExporter(blocker, monotonic=lambda: now[0])
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert exporter.export([make_span(), make_span()]) is SpanExportResult.FAILURE
            now[0] += 1.5
    assert exporter.lost_spans == 6
    assert exporter.failed_writes == 2  # 0 s, then 1.5 s; the third falls into the back-off of 2 s
    assert len(caplog.records) == 1
    blocker.unlink()
    now[0] += 60
    assert exporter.export([make_span()]) is SpanExportResult.SUCCESS
    assert (exporter.lost_spans, exporter.exported_spans) == (6, 1)


def test_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    now = [0.0]
    exporter = OTLPFileSpanExporter(tmp_path, monotonic=lambda: now[0])
    exporter.export([make_span()])
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[:100]))
    assert exporter.export([make_span(number=2)]) is SpanExportResult.FAILURE
    monkeypatch.setattr(os, "write", lambda fd, data: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
    now[0] += 10
    assert exporter.export([make_span(number=3)]) is SpanExportResult.FAILURE
    monkeypatch.setattr(os, "write", real_write)
    now[0] += 10
    assert exporter.export([make_span(number=4)]) is SpanExportResult.SUCCESS
    assert [int(span["spanId"], 16) for span in read_spans(tmp_path)] == [1, 4]
    assert exporter.lost_spans == 2


def test_removed_file_is_reopened(tmp_path):
    exporter = OTLPFileSpanExporter(tmp_path)
    exporter.export([make_span()])
    exporter.path.unlink()
    exporter.export([make_span(number=2)])
    assert [int(span["spanId"], 16) for span in read_spans(tmp_path)] == [2]


def test_span_that_cannot_be_encoded_costs_its_batch_only(tmp_path):
    exporter = OTLPFileSpanExporter(tmp_path)
    assert exporter.export([make_span(attributes={"o": object()})]) is SpanExportResult.FAILURE
    assert exporter.export([make_span()]) is SpanExportResult.SUCCESS
    assert (exporter.lost_spans, exporter.exported_spans) == (1, 1)


def test_fork_writes_its_own_file_even_when_the_lock_was_held(tmp_path):
    exporter = OTLPFileSpanExporter(tmp_path)
    exporter.export([make_span()])
    with exporter._lock:
        pid = os.fork()
        if pid == 0:
            ok = exporter.export([make_span(number=2)]) is SpanExportResult.SUCCESS and exporter.exported_spans == 1
            os._exit(0 if ok and str(os.getpid()) in exporter.path.name else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    exporter.export([make_span(number=3)])
    assert [int(s["spanId"], 16) for s in read_spans(tmp_path)] in ([1, 3, 2], [2, 1, 3])
    assert len(list(tmp_path.iterdir())) == 2
