"""The parts of the live run that need no engine: matrix, fixture devices, collector, spans of one incident."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.live.collector import Collector
from benchmarks.live.cut import cut
from benchmarks.live.devices import CONGESTED, RAILS, FixtureDevices
from benchmarks.live.incidents import BIDIRECTIONAL, PULL, PUSH, TCP
from benchmarks.live.matrix import ALERTS, Row, render_rows
from benchmarks.live.profile import CONFIG, FACTOR, write_rules
from dashboards.config import Config
from exporters.efa.sysfs import EfaReader

INCIDENTS = (*PULL, *PUSH, *BIDIRECTIONAL, *TCP)


def row(name: str, fired: set[str], wanted: set[str], also: frozenset[str] = frozenset()) -> Row:
    return Row("lab", name, frozenset(fired), frozenset(wanted), also)


def test_every_alert_has_an_incident_and_healthy_ones_have_none() -> None:
    assert {alert for incident in INCIDENTS for alert in incident.alerts} == set(ALERTS)
    assert {alert for incident in INCIDENTS for alert in incident.also} <= set(ALERTS)
    assert [incident.alerts + incident.also for incident in INCIDENTS if incident.story == "nothing"] == [()] * 3


def test_matrix_says_what_is_missing_and_what_is_wrong() -> None:
    one, other = ALERTS[0], ALERTS[1]
    rows = [
        row("a", {one}, {one}),
        row("b", set(), {one}),
        row("c", {other}, set()),
        row("d", {other}, set(), frozenset({other})),
    ]
    assert [sorted(each.missing) for each in rows] == [[], [one], [], []]
    assert [sorted(each.wrong) for each in rows] == [[], [], [other], []]
    lines = render_rows(rows).splitlines()
    assert next(line for line in lines if line.startswith(one)).split()[1:] == ["F", "!", ".", "."]
    assert next(line for line in lines if line.startswith(other)).split()[1:] == [".", ".", "?", "+"]


def test_lab_profile_changes_time_and_limits_only(tmp_path: Path) -> None:
    names = write_rules(tmp_path)
    assert sorted(names) == ["kvlens-alerts.yaml", "kvlens-recording.yaml"]
    text = (tmp_path / "kvlens-alerts.yaml").read_text(encoding="utf-8")
    assert FACTOR == 30
    assert "for: 20s" in text
    same = {"coordination_share", "coordination_seconds", "retransmitted_share", "prefix", "recorded"}
    assert all(getattr(CONFIG, name) == getattr(Config(), name) for name in same)


def test_fixture_devices_are_read_as_real_ones_and_move(tmp_path: Path) -> None:
    devices = FixtureDevices(tmp_path)
    devices.retransmitted = CONGESTED
    devices.start()
    try:
        reader = EfaReader(tmp_path)
        assert sorted(device.name for device in reader.inventory.refresh()) == sorted(RAILS)
        deadline = time.monotonic() + 20
        while not any(reading.counters["retrans_pkts"] for reading in reader.scan().readings):
            assert time.monotonic() < deadline, "counters don't move"
            time.sleep(0.2)
    finally:
        devices.close()


def test_collector_accepts_until_it_refuses() -> None:
    collector = Collector()
    try:
        url = f"{collector.environment['OTEL_EXPORTER_OTLP_ENDPOINT']}/v1/traces"
        with urllib.request.urlopen(urllib.request.Request(url, b"x")) as answer:
            assert answer.status == 200
        collector.refuses = True
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(urllib.request.Request(url, b"x"))
    finally:
        collector.close()


def test_cut_keeps_what_began_in_the_incident(tmp_path: Path) -> None:
    run = tmp_path / "pull"
    (run / "traces").mkdir(parents=True)
    (run / "manifest.json").write_text("{}", encoding="utf-8")
    spans = [{"startTimeUnixNano": str(second * 10**9)} for second in (5, 15, 25)]
    document = {"resourceSpans": [{"resource": {}, "scopeSpans": [{"spans": spans}]}]}
    (run / "traces/a.otlp.jsonl").write_text(json.dumps(document) + "\n", encoding="utf-8")
    phases = [{"name": "late", "began": 10, "ended": 20, "run": str(run)}]
    (tmp_path / "phases.json").write_text(json.dumps({"phases": phases}), encoding="utf-8")
    assert cut(tmp_path, "late", tmp_path / "out") == 1
    kept = json.loads((tmp_path / "out/traces/a.otlp.jsonl").read_text(encoding="utf-8"))
    assert kept["resourceSpans"][0]["scopeSpans"][0]["spans"] == [{"startTimeUnixNano": "15000000000"}]
