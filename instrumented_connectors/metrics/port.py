"""The connector facade's side of the metrics, on engine threads: hand over what is ready, take out what came.

An engine that becomes idle takes no more steps, and what was measured in its last second would lie until the next
request: gauges would stand at a held block for hours. So an idle engine is asked for one more (empty) step when
something is left.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

from .. import events
from ..guard import guarded, report
from ..recorder import Recorder
from .collect import Collector
from .stats import extend_stats, take_payloads
from .window import Payload

FLUSH_MARK = "kvlens_flush"
"""Attribute of the connector metadata that asks the workers to hand over everything in this step."""
_MAX_ASKED = 8


class NullPort:
    """Delivers nothing of its own. Stats keep their class, since all ranks of an engine must return the same."""

    def loading(self, metadata: Any) -> None: ...
    def told(self, output: Any) -> None: ...
    def touch(self) -> None: ...
    def plan(self, output: Any, metadata: Any) -> None: ...

    def wants_step(self) -> bool:
        """Return whether an idle engine should take one more step."""
        return False

    def stats(self, stock: Any) -> Any:
        """Return the stats of this step."""
        return extend_stats(stock)


class Port(NullPort):
    """Delivers what the collector has ready.

    Args:
        collector: accumulates on the background thread.
        drain: dispatches everything that is recorded by now.
    """

    def __init__(self, collector: Collector, drain: Any) -> None:
        self._collector = collector
        self._take = collector.take
        self._drain = drain
        self._flushing = False

    def stats(self, stock: Any) -> Any:
        """Return the stats of this step: mostly the stock ones, once a second with a payload."""
        try:
            if self._flushing:
                self._flush()
            payload = self._take()
        except Exception as error:
            report("Port.stats", error)
            payload = None
        if payload is None and stock is None:
            return None
        return extend_stats(stock, payload)

    def _flush(self) -> None:
        self._flushing = False
        self._collector.force()
        self._drain()


class WorkerPort(Port):
    """Worker side."""

    def loading(self, metadata: Any) -> None:
        """Note that the scheduler asks for everything."""
        if getattr(metadata, FLUSH_MARK, False):
            self._flushing = True


class SchedulerPort(Port):
    """Scheduler side.

    Args:
        collector, drain: see `Port`.
        recorder: receives the facts that workers sent.
        asks: ask an idle engine for one more step.
    """

    def __init__(self, collector: Collector, drain: Any, recorder: Recorder, *, asks: bool) -> None:
        super().__init__(collector, drain)
        self._record = recorder.record
        self._asks = asks
        self._left = False
        self._asked = 0

    def touch(self) -> None:
        """Note that something happened that is to be delivered."""
        self._left = self._asks

    def told(self, output: Any) -> None:
        """Take the workers' facts out of their stats: they name requests and go no further than here."""
        try:
            if output.finished_recving or output.finished_sending:
                self.touch()
            stats = getattr(output, "kv_connector_stats", None)
            if stats is not None:
                self._take_facts(take_payloads(stats))
        except Exception as error:
            report("SchedulerPort.told", error)

    def _take_facts(self, payloads: list[Payload]) -> None:
        # What the workers learned of other engines first: who waits for a fact may need it.
        learned = [payload.pop("o") for payload in payloads if "o" in payload]
        if learned:
            self._record((events.PEERS, perf_counter_ns(), learned))
        facts = [payload.pop("r") for payload in payloads if "r" in payload]
        if facts:
            self._record((events.FACTS, perf_counter_ns(), facts))
        # The workers have handed over everything: now this side does, in the same step.
        marks = [payload.pop("f", False) for payload in payloads]
        self._flushing = self._flushing or any(marks)

    def wants_step(self) -> bool:
        """Return whether an idle engine should take one more step (asked only when nothing else wants one)."""
        if not self._left or self._asked >= _MAX_ASKED:
            return False
        self._asked += 1
        return True

    def plan(self, output: Any, metadata: Any) -> None:
        """Mark the step that was asked for."""
        if self._asked:
            self._mark(output, metadata)

    @guarded
    def _mark(self, output: Any, metadata: Any) -> None:
        self._asked = 0
        if output.total_num_scheduled_tokens == 0:
            self._left = False
            setattr(metadata, FLUSH_MARK, True)
