"""The load generator, a process of its own: ``python -m lab.loadgen --url URL --workload FILE --out client.jsonl``.

Prints each record as a line of JSON when its request ends, which is how the lab follows the progress.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import ClientSession, ClientTimeout, TCPConnector

from instrumented_connectors.clock import Clock

from .client import Measurement, measure
from .history import Turn, draw_gap
from .priority import run_promptly
from .replay import next_turn, turn_source
from .workload import Planned, Workload, choose_request_id, conversation_headers, encode_body, plan, request_path

Record = dict[str, Any]


class LoadGenerator:
    """Send one workload to one URL.

    Args:
        url: the router (or an engine), without path.
        workload: what to send.
        mode: label of the records.
        on_record: called with each record when its request ends.
        clock: the process's anchored clock.
    """

    def __init__(
        self, url: str, workload: Workload, mode: str, on_record: Callable[[Record], None], clock: Clock | None = None
    ) -> None:
        self._base = url.rstrip("/")
        self._url = self._base + request_path(workload)
        self._workload, self._mode, self._on_record = workload, mode, on_record
        self._clock = clock or Clock()
        limit = workload.max_in_flight
        self._slots = asyncio.Semaphore(limit) if limit else None

    async def run(self) -> None:
        """Send all requests at their times and wait for the last one to end."""
        planned = [
            (entry, encode_body(self._workload, entry.prompt, self._conversation(entry)))
            for entry in plan(self._workload)
        ]
        connector = TCPConnector(limit=0, keepalive_timeout=30)
        async with ClientSession(connector=connector, timeout=ClientTimeout(total=None), read_bufsize=2**20) as session:
            now = asyncio.get_running_loop().time
            start, sent = now(), []
            for entry, body in planned:
                await asyncio.sleep(max(0.0, start + entry.arrival_s - now()))
                # A slot is taken here, not in the task: without a rate, requests must start one after the other.
                if self._slots:
                    await self._slots.acquire()
                sent.append(asyncio.create_task(self._send(session, entry, body)))
            await asyncio.gather(*sent)

    def _conversation(self, entry: Planned) -> str | None:
        return f"conversation-{entry.request_id.removesuffix('-t0')}" if self._workload.turns > 1 else None

    async def _send(self, session: ClientSession, entry: Planned, body: bytes) -> None:
        async with AsyncExitStack() as stack:
            if self._slots:
                stack.callback(self._slots.release)
            if self._workload.turns == 1:
                await self._measure(session, body, self._expect(entry, entry.request_id, entry.prompt))
            else:
                await self._converse(session, entry, body)

    async def _converse(self, session: ClientSession, entry: Planned, body: bytes) -> None:
        """Send the turns of a conversation, each made from the history as the workload says."""
        workload, conversation = self._workload, self._conversation(entry)
        assert conversation is not None
        source = turn_source(workload, entry.index)
        waits = random.Random(f"{workload.seed}-{entry.index}-gaps")
        now, gap_s = Turn("first", entry.prompt), None
        for turn in range(workload.turns):
            result = self._expect(entry, choose_request_id(workload, entry.index, turn), now.prompt)
            result.headers = conversation_headers(workload, conversation)
            result.extra = {"conversation_id": conversation, "turn": turn, "gap_s": gap_s, **now.describe()}
            await self._measure(session, body, result)
            if result.error or turn + 1 == workload.turns:
                return
            kind = workload.kind_of(turn + 1)
            now = next_turn(workload, turn + 1, (now.prompt, result.tokens), source)
            body = encode_body(workload, now.prompt, conversation)
            wait_s = draw_gap(workload.gaps, workload.think_s, workload.gap_spread, waits)
            await asyncio.sleep(workload.pause_s if kind == "paused" else wait_s)
            if kind == "lost":
                await self._forget(session, conversation)
            gap_s = round((self._clock.wall_ns() - result.end_ns) / 1e9, 6)

    async def _forget(self, session: ClientSession, conversation: str) -> None:
        """Have the router forget the conversation's blocks (an engine has no such address, and needs none)."""
        async with session.delete(f"{self._base}/conversations/{quote(conversation, safe='')}") as answer:
            await answer.read()

    def _expect(self, entry: Planned, request_id: str, prompt: list[int]) -> Measurement:
        return Measurement(request_id, self._mode, len(prompt), self._workload.output_len, entry.traceparent)

    async def _measure(self, session: ClientSession, body: bytes, result: Measurement) -> None:
        await measure(session, self._url, body, result, self._clock)
        self._on_record(result.record())


def run_workload(url: str, workload: Workload, mode: str = "", path: Path | None = None) -> list[Record]:
    """Run a workload in this process and return its records in the order in which they ended.

    Args:
        url: the router (or an engine), without path.
        workload: what to send.
        mode: label of the records.
        path: client.jsonl to append to.
    """
    records: list[Record] = []

    def keep(record: Record) -> None:
        records.append(record)
        if path:
            append_record(path, record)

    async def run() -> None:
        await LoadGenerator(url, workload, mode, keep).run()

    asyncio.run(run())
    return records


def append_record(path: Path, record: Record) -> None:
    """Append one record in a single write, so that a killed run leaves whole lines."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def main() -> None:
    """Run the workload of a file."""
    parser = argparse.ArgumentParser(prog="python -m lab.loadgen")
    parser.add_argument("--url", required=True)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--mode", default="")
    parser.add_argument("--out", type=Path, help="client.jsonl to append to")
    options = parser.parse_args()
    workload = Workload.from_json(json.loads(options.workload.read_text(encoding="utf-8")))

    def report(record: Record) -> None:
        if options.out:
            append_record(options.out, record)
        sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\n")
        sys.stdout.flush()

    # What exists now lives as long as the process; a collection in the middle of a run would be measured as latency.
    gc.freeze()
    run_promptly()

    async def run() -> None:
        await LoadGenerator(options.url, workload, options.mode, report).run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
