"""What the tests of the bidirectional mode share: one played run, its records, spans and references."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from lab.cache_usage import read_usage_log
from lab.model import SERVED_NAME
from lab.replay import replay_prompts
from lab.run import Pair
from lab.workload import Workload

Record = dict[str, Any]


@dataclass
class Played:
    """What was sent: records and their workload by name, when the engines' caches were empty (Unix ns),
    and the prefill engine's metrics at the end."""

    records: dict[str, list[Record]] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)
    references: dict[str, list[int]] = field(default_factory=dict)
    empty_ns: int = 0
    metrics: dict[tuple[str, tuple[str, ...]], float | list[float]] = field(default_factory=dict)

    def send(self, pair: Pair, workload: Workload) -> list[Record]:
        """Run a workload and keep its records under its prefix."""
        records = pair.run_workload(workload)
        self.workloads[workload.id_prefix], self.records[workload.id_prefix] = workload, records
        return records

    def all_records(self) -> list[Record]:
        return [record for records in self.records.values() for record in records]

    def make_references(self, pair: Pair, names: Sequence[str]) -> None:
        """Have each engine alone answer half of the prompts, both at once."""
        wanted = [
            (request_id, prompt, self.workloads[name].output_len)
            for name in names
            for request_id, prompt in replay_prompts(self.workloads[name], self.records[name]).items()
        ]

        def answer(engine: str, part: list[Any]) -> None:
            for request_id, prompt, count in part:
                self.references[request_id] = pair.generate(prompt, count, engine)

        with ThreadPoolExecutor(2) as pool:
            parts = (("decode", wanted[::2]), ("prefill", wanted[1::2]))
            for done in [pool.submit(answer, *part) for part in parts]:
                done.result()


def post(url: str, body: Mapping[str, Any], timeout_s: float = 60.0, **headers: str) -> tuple[int, Any]:
    """Send one request; a timeout leaves as a client does, in the middle. Returns status (0 then) and answer."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=timeout_s)
    sent = {"Content-Type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
    try:
        connection.request("POST", "/v1/completions", json.dumps({"model": SERVED_NAME, **body}), sent)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    except TimeoutError:
        return 0, None
    finally:
        connection.close()


def wait_until_empty(pair: Pair, timeout_s: float = 40.0, engines: Sequence[str] = ()) -> int:
    """Wait until vLLM says that no block is in use on these engines (all); return when it said so (Unix ns)."""
    deadline = time.monotonic() + timeout_s
    while True:
        last = {record["engine"]: record for record in read_usage_log(pair.out)}
        latest = {name: record for name, record in last.items() if not engines or name in engines}
        if all(record["blocks"] == 0 for record in latest.values()):
            return max(record["unix_ns"] for record in latest.values())
        assert time.monotonic() < deadline, {name: record["blocks"] for name, record in latest.items()}
        time.sleep(0.3)


def of_kind(spans: Sequence[Mapping[str, Any]], name: str, role: str | None = None) -> list[dict[str, Any]]:
    """Return the spans of a name, warm-up left out."""
    return [
        dict(span)
        for span in spans
        if span["name"] == name
        and role in (None, span["role"])
        and not str(span.get("request_key", "")).startswith("warmup-")
    ]


def by_key(spans: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return spans by the client's request id; where there are several, the first."""
    found: dict[str, dict[str, Any]] = {}
    for span in sorted(spans, key=lambda span: span["begin"]):
        found.setdefault(str(span["request_key"]), dict(span))
    return found


def count_reasons(spans: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter(str(span["reason"]) for span in spans)


def number(span: Mapping[str, Any], name: str) -> float:
    with suppress(TypeError, ValueError):
        return float(span[name])
    return 0.0
