"""Samplers decide as the SDK's do, from trace id and caller's flag alone; levels of detail; the stages of the chain."""

from __future__ import annotations

import random
from typing import Any

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, sampling
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from instrumented_connectors import catalogue, events
from instrumented_connectors.clock import Clock
from instrumented_connectors.keeping import KeepingSampler
from instrumented_connectors.runtime import EngineIdentity, Runtime
from instrumented_connectors.sampling import Sampler, make_decision
from instrumented_connectors.settings import SamplingSettings, Settings
from instrumented_connectors.sinks import DETAIL, DetailFilter, build_sinks
from instrumented_connectors.spans import SpanFactory

SAMPLERS = (
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
)


class End:
    """The last stage: keeps (name, request id, why it was kept)."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Any, Any]] = []
        self.closed = self.restarted = 0

    def on_end(self, span: ReadableSpan) -> None:
        attributes = span.attributes or {}
        self.spans.append((span.name, attributes.get("kv_transfer.request_id"), attributes.get("kv_transfer.kept")))

    def close(self) -> None:
        self.closed += 1

    def restart(self) -> None:
        self.restarted += 1


def sdk_decision(monkeypatch: pytest.MonkeyPatch, sampler: str, ratio: float, trace_id: int, flags: int | None) -> bool:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", str(ratio))
    context = Context()
    if flags is not None:
        parent = SpanContext(trace_id, 1, True, TraceFlags(flags))
        context = set_span_in_context(NonRecordingSpan(parent), context)
    result = sampling._get_from_env_or_default().should_sample(context, trace_id, "decode")
    return result.decision.is_sampled()


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_decisions_are_the_sdks(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(5)
    edges = [1, (1 << 64) - 1, 1 << 63, (1 << 128) - 1, (1 << 64), 3 << 62]
    for ratio in (0.0, 0.01, 0.25, 0.5, 1.0):
        decide = make_decision(sampler, ratio) or (lambda trace_id, flags: True)
        for trace_id in [*edges, *(generator.getrandbits(128) for _ in range(50))]:
            for flags in (None, 0, 1, 2, 3):
                expected = sdk_decision(monkeypatch, sampler, ratio, trace_id, flags)
                assert decide(trace_id, flags) is expected, (sampler, ratio, hex(trace_id), flags)


def test_samplers_that_take_everything_need_no_stage(caplog: pytest.LogCaptureFixture) -> None:
    assert make_decision("always_on", 0.5) is None
    assert make_decision("traceidratio", 1.0) is None
    assert not caplog.records
    unknown = make_decision("nonsense", 0.0)
    assert unknown is not None
    assert unknown(1, None)
    assert "OTEL_TRACES_SAMPLER=nonsense" in caplog.text


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, SamplingSettings()),
        (
            {"OTEL_TRACES_SAMPLER": "TraceIdRatio", "OTEL_TRACES_SAMPLER_ARG": "0.1"},
            SamplingSettings(sampler="traceidratio", ratio=0.1),
        ),
        ({"OTEL_TRACES_SAMPLER_ARG": "7"}, SamplingSettings(ratio=1.0)),
        ({"OTEL_TRACES_SAMPLER_ARG": "some"}, SamplingSettings(ratio=1.0)),
        ({"KVLENS_SAMPLE_KEEP_SLOW_MS": "250"}, SamplingSettings(keep_slow_ms=250.0, keep_failed=True)),
        (
            {"KVLENS_SAMPLE_KEEP_SLOW_MS": "250", "KVLENS_SAMPLE_KEEP_FAILED": "0"},
            SamplingSettings(keep_slow_ms=250.0),
        ),
        ({"KVLENS_SAMPLE_KEEP_FAILED": "1"}, SamplingSettings(keep_failed=True)),
        ({"KVLENS_SAMPLE_KEEP_SLOW_MS": "-5"}, SamplingSettings()),
    ],
)
def test_settings(env: dict[str, str], expected: SamplingSettings) -> None:
    assert Settings.from_env(env).sampling == expected


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        (SamplingSettings(sampler="always_on"), []),
        (SamplingSettings(), [Sampler]),
        (SamplingSettings(sampler="always_on", keep_failed=True), []),
        (SamplingSettings(sampler="traceidratio", ratio=0.5, keep_failed=True), [KeepingSampler]),
        (SamplingSettings(sampler="always_on", detail="request"), [DetailFilter]),
        (SamplingSettings(detail="transfer"), [Sampler, DetailFilter]),
    ],
)
def test_the_chain_has_only_the_stages_that_do_something(settings: SamplingSettings, kinds: list[type]) -> None:
    end = End()
    stage: Any = build_sinks(settings, end, lambda _: None, 10).first
    found = []
    first = stage
    while stage is not end:
        found.append(type(stage))
        stage = stage._sink
    assert found == kinds
    first.close()
    first.restart()
    assert (end.closed, end.restarted) == (1, 1)


def make_span(name: str, request_id: str | None = "r", trace_id: int = 1, **more: Any) -> ReadableSpan:
    found: list[ReadableSpan] = []

    class Catch:
        def on_end(self, span: ReadableSpan) -> None:
            found.append(span)

    factory = SpanFactory(Catch(), Resource({}), Clock(), "E")
    factory.emit(name, trace_id, 0, 1, {"request_id": request_id}, error=more.get("error", False))
    return found[0]


def test_each_level_passes_its_spans_and_every_failure() -> None:
    known = {span.name for span in catalogue.SPANS}
    previous: frozenset[str] = frozenset()
    for level in ("request", "transfer"):
        wanted = DETAIL[level]
        assert wanted is not None
        assert previous < wanted < known
        previous = wanted
        end = End()
        stage = build_sinks(SamplingSettings(sampler="always_on", detail=level), end, lambda _: None, 10)
        for name in sorted(known):
            stage.first.on_end(make_span(name))
            stage.first.on_end(make_span(name, error=True))
        assert {name for name, *_ in end.spans} == known
        assert len(end.spans) == len(wanted) + len(known)
        assert stage.detail is not None
        assert stage.detail.filtered == len(known - wanted)
    assert DETAIL["full"] is None


def test_an_unknown_level_is_named_and_means_full(caplog: pytest.LogCaptureFixture) -> None:
    sinks = build_sinks(SamplingSettings(sampler="always_on", detail="much"), End(), lambda _: None, 10)
    assert sinks.detail is None
    assert "KVLENS_DETAIL=much" in caplog.text


def test_a_request_has_one_verdict_also_when_its_context_is_forgotten() -> None:
    flags: dict[str, int] = {"yes": 1, "no": 0}
    end = End()
    sampler = Sampler(end, lambda _, flags: bool(flags), flags.get, 10)
    for request_id in ("yes", "no", "none"):
        sampler.on_end(make_span("prefill", request_id))
    flags.clear()
    for request_id in ("yes", "no", "none"):
        sampler.on_end(make_span("lease", request_id))
    assert end.spans == [("prefill", "yes", None), ("lease", "yes", None)]
    assert sampler.sampled_out == 4


def test_what_is_remembered_is_bounded() -> None:
    sampler = Sampler(End(), lambda *_: False, lambda _: None, 10)
    for number in range(1000):
        sampler.on_end(make_span("prefill", str(number)))
    assert len(sampler._verdicts) == 10
    assert sampler.sampled_out == 1000


class Spans:
    """The pipeline of a runtime that keeps spans in memory."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.produced = 0

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)

    def counters(self) -> dict[str, Any]:
        return {}

    def close(self) -> None: ...
    def shutdown(self) -> None: ...
    def restart(self) -> None: ...


def run_engine(role: str, flags: int | None, settings: SamplingSettings, requests: int = 200) -> set[int]:
    """Feed arrivals and ends of requests to a whole runtime; return the trace ids that came out."""
    pipeline: Any = Spans()
    identity = EngineIdentity(role[0].upper() + "0", role, "push")
    runtime = Runtime(identity, Settings(sampling=settings), pipeline)
    for number in range(requests):
        # As vLLM names them: the client's id, then a suffix of its own on each engine.
        request_id = f"cmpl-client-{number}-0-{role[0].encode().hex():0>8}"
        context = None if flags is None else (number + 1 << 60, 7, flags)
        is_prefill = role == "prefill"
        record = runtime.recorder.record
        record((events.ARRIVE, 10, request_id, 64, is_prefill, not is_prefill, None, None, context))
        record((events.FINISH, 20, request_id, "finished_length_capped", 64, 1, 2, False))
    runtime.close()
    spans = [span.get_span_context() for span in pipeline.spans if span.name == role]
    return {context.trace_id for context in spans if context is not None}


def test_prefill_and_decode_choose_the_same_requests() -> None:
    ratio = SamplingSettings(sampler="parentbased_traceidratio", ratio=0.25)
    prefill, decode = run_engine("prefill", None, ratio), run_engine("decode", None, ratio)
    assert prefill == decode
    assert 20 < len(prefill) < 80


@pytest.mark.parametrize(("flags", "share"), [(1, 1.0), (0, 0.0)])
def test_the_callers_flag_is_honoured(flags: int, share: float) -> None:
    for sampler in ("parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"):
        settings = SamplingSettings(sampler=sampler, ratio=0.5)
        assert len(run_engine("decode", flags, settings, 20)) == 20 * share
    assert len(run_engine("decode", flags, SamplingSettings(sampler="always_on"), 20)) == 20
