"""Scraped metrics and the spans of the same run, side by side."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from exporters.span_tail import SpanTail, read_attributes
from instrumented_connectors.metrics import catalogue as table
from instrumented_connectors.metrics.measure import measure
from instrumented_connectors.metrics.window import LabelBounds, Window, read_payload
from lab.engine import Engine
from lab.ports import choose_port
from lab.run import Pair

Key = tuple[str, tuple[str, ...]]
VLLM_LABELS = {"model_name", "engine", "le"}


def scrape(engine: Engine) -> str:
    with urllib.request.urlopen(f"{engine.url}/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def only_kvlens(text: str) -> str:
    """Return the exposition of kvlens's own metrics."""
    lines = (
        line for line in text.splitlines() if line.removeprefix("# HELP ").removeprefix("# TYPE ")[:7] == "kvlens_"
    )
    return "\n".join(lines) + "\n"


def read_metrics(text: str) -> dict[Key, float | list[float]]:
    """Return kvlens's metrics by name and own labels: a number, or a histogram's sum and counts by bucket."""
    found: dict[Key, Any] = {}
    for family in text_string_to_metric_families(text):
        metric = table.BY_NAME.get(family.name) or table.BY_NAME.get(f"{family.name}_total")
        if metric is None:
            continue
        for sample in family.samples:
            if sample.name.endswith("_created"):
                continue
            key = (metric.name, tuple(sample.labels[name] for name in metric.labels))
            if metric.kind != table.HISTOGRAM:
                found[key] = sample.value
                continue
            cells = found.setdefault(key, [0.0])
            if sample.name.endswith("_sum"):
                cells[0] = sample.value
            elif sample.name.endswith("_bucket"):
                cells.append(sample.value - sum(cells[1:]))
    return found


def measure_spans(pair: Pair, engine: Engine) -> dict[Key, float | list[float]]:
    """Return what the exported spans of one engine amount to."""
    window = Window(LabelBounds())
    for about, span in SpanTail(pair.out / "traces").poll():
        if about["service.instance.id"] != engine.id:
            continue
        nanoseconds = int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])
        attributes = read_attributes(span.get("attributes", []))
        for observation in measure(span["name"], nanoseconds, attributes, mode=pair.mode, backend="UCX"):
            window.add(*observation)
    return {(metric.name, labels): value for metric, labels, value in read_payload(window.to_payload())}


def find_differences(pair: Pair, engine: Engine) -> list[str]:
    """Return where an engine's metrics and its spans disagree, counts exactly and sums to the nanosecond or so."""
    scraped, expected = read_metrics(scrape(engine)), measure_spans(pair, engine)
    problems = []
    for key, value in expected.items():
        seen = scraped.get(key)
        if seen is None or not is_equal(seen, value):
            problems.append(f"{engine.id} {key}: metrics {seen}, spans {value}")
    # What spans can't tell has no counterpart among them: dispatch, gauges, classes, kvlens's own figures.
    names = {name for name, _ in expected}
    for key in scraped.keys() - expected.keys():
        if key[0] in names and "dispatch" not in key[1] and scraped[key]:
            problems.append(f"{engine.id} {key}: metrics {scraped[key]}, no spans")
    return problems


def is_equal(seen: float | list[float], expected: float | list[float]) -> bool:
    if isinstance(seen, list) and isinstance(expected, list):
        return seen[1:] == expected[1:] and abs(seen[0] - expected[0]) <= 1e-6 * max(1.0, expected[0])
    assert not isinstance(seen, list)
    assert not isinstance(expected, list)
    return abs(seen - expected) <= 1e-6 * max(1.0, expected)


def wait_for_agreement(pair: Pair, timeout_s: float = 15.0) -> list[str]:
    """Compare all engines until spans and metrics agree (exporting takes a moment); return the last differences."""
    deadline = time.monotonic() + timeout_s
    while True:
        problems = [problem for engine in pair.engines for problem in find_differences(pair, engine)]
        if not problems or time.monotonic() > deadline:
            return problems
        time.sleep(0.5)


class Prometheus:
    """A running Prometheus and its query API."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Return (labels, value) of an instant query."""
        address = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(address, timeout=30) as answer:
            result = json.load(answer)["data"]["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def scalar(self, expression: str) -> float:
        """Return the value of a query with one series."""
        ((_, value),) = self.query(expression)
        return value


@contextmanager
def run_prometheus(binary: str, targets: dict[str, str], folder: Path) -> Iterator[Prometheus]:
    """Scrape targets (name -> host:port) once a second."""
    jobs = [{"job_name": name, "static_configs": [{"targets": [target]}]} for name, target in targets.items()]
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    address = f"127.0.0.1:{choose_port(None, 'Prometheus')}"
    command = [binary, f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            wait_until_ready(f"http://{address}/-/ready", process)
            yield Prometheus(f"http://{address}")
        finally:
            process.terminate()
            process.wait(20)


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None, "Prometheus ended"
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("Prometheus is not ready")
