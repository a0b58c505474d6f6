"""Worker events of one rank -> spans of registration, pairing, post, wire, completion, handshake and failure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, TypeVar

from . import catalogue as names
from . import events
from .compat import PUSH_REGISTRATION_PREFIX
from .events import Event
from .identity import derive_span_id, derive_trace_id
from .metrics.facts import Cause
from .request_spans import with_request
from .spans import Attributes, SpanFactory
from .traces import TraceBook
from .transfer_tables import Tables, Transfer, decode_registration, match_base

HEARTBEAT_PREFIX = b"HB:"

V = TypeVar("V")


class TransferSpans:
    """Follow the transfers of one worker rank.

    Args:
        factory: makes the spans.
        traces: trace identity of requests.
        causes: receives why a lease ended, for the scheduler side in the same process.
        limit: requests followed at most; the oldest are given up and counted in `evicted`.
        rank: tensor-parallel rank.
    """

    def __init__(
        self, factory: SpanFactory, traces: TraceBook, causes: dict[str, Cause], limit: int, rank: int = 0
    ) -> None:
        self._factory = factory
        self._traces = traces
        self._causes = causes
        self._limit = limit
        self.rank = rank
        self._known = Tables()
        self._transfers: OrderedDict[int, Transfer] = OrderedDict()
        self.evicted = 0
        self.handlers = {
            events.LOAD: self._on_load,
            events.PREP: self._on_prep,
            events.POSTED: self._on_posted,
            events.DONE: self._on_done,
            events.TELEMETRY: self._on_telemetry,
            events.RESULTS: self._on_results,
            events.NOTIFIED: self._on_notified,
            events.SENT: self._on_sent,
            events.HANDSHAKE: self._on_handshake,
            events.FAILURE: self._on_failure,
            events.READ_CHECK: self._on_read_check,
        }

    # -- what the scheduler handed to the worker -------------------------------------------------

    def _on_load(self, event: Event) -> None:
        _, at, receiving, finished, contexts, follow_peer = event
        for request_id, context in (contexts or {}).items():
            self._traces.set_context(request_id, context)
        for request_id, engine_id, peer_request_id, awaits in receiving:
            if follow_peer and peer_request_id:
                self._traces.set_alias(request_id, peer_request_id)
            if not awaits:
                # Only a notification goes out, and nothing will be reported: a later message that names this request
                # is the other side's, about the blocks that it reads from here.
                continue
            self._put(self._known.peers, request_id, (engine_id, peer_request_id))
            if peer_request_id:
                readers = self._known.by_peer.setdefault(peer_request_id, [])
                readers.append(request_id)
                self._trim(self._known.by_peer)
        for request_id in finished:
            self._put(self._known.blocks_ready, request_id, at)

    # -- transfers ----------------------------------------------------------------------------------

    def _on_prep(self, event: Event) -> None:
        _, start, end, handle, operation, descriptors, notification, current, thread, ok = event
        peer = notification.rsplit(b":", 1)[0].decode("utf-8", "replace") if notification else None
        request_id = current or self._find_request(operation, peer)
        if peer is None and request_id is not None:
            peer = self._known.peers.get(request_id, (None, None))[1]
        if request_id is not None and operation == "READ":
            self._put(self._known.blames, request_id, "failed")
        transfer = Transfer(operation, descriptors, request_id, peer, start, end, thread)
        if operation == "WRITE" and request_id is not None and peer is not None:
            self._pair(request_id, peer)
        if ok:
            self._put(self._transfers, handle, transfer)
        else:
            self._emit_post(transfer, end, ok=False)

    def _find_request(self, operation: str, peer: str | None) -> str | None:
        """Find the local request of a transfer from its notification, where no probe names it."""
        if peer is None:
            return None
        if operation == "READ":
            readers = self._known.by_peer.get(peer, [])
            return readers[0] if len(readers) == 1 else None
        return match_base(peer, self._known.blocks_ready)

    def _on_posted(self, event: Event) -> None:
        _, _start, end, handle, _thread, ok = event
        transfer = self._transfers.get(handle)
        if transfer is None:
            return
        transfer.posted = end
        self._emit_post(transfer, end, ok=ok)
        if not ok:
            del self._transfers[handle]

    def _emit_post(self, transfer: Transfer, end: int, *, ok: bool) -> None:
        attributes = self._of_transfer(transfer, "ok" if ok else "error")
        attributes |= {"thread": transfer.thread, "prep_ns": transfer.prep_end - transfer.prep_start}
        self._emit(transfer.request_id, names.POST, transfer.prep_start, end, attributes, error=not ok)

    def _on_done(self, event: Event) -> None:
        _, at, handle, last_pending, polls, state, *thread = event
        transfer = self._transfers.get(handle)
        if transfer is None:
            return
        transfer.done, transfer.last_pending, transfer.polls = at, last_pending, polls
        transfer.poll_thread = thread[0] if thread else None
        if state != "DONE":
            del self._transfers[handle]
            self._emit_wire(transfer, "error", {})
            return
        if transfer.request_id is not None:
            self._put(self._known.seen, transfer.request_id, at)
            if transfer.operation == "WRITE":
                self._put(self._known.ended, transfer.request_id, "sent")

    def _on_telemetry(self, event: Event) -> None:
        _, _, handle, post_us, xfer_us, size, descriptors = event
        transfer = self._transfers.pop(handle, None)
        if transfer is None or transfer.done is None:
            return
        figures = {"nixl_post_us": post_us, "nixl_xfer_us": xfer_us, "bytes": size}
        transfer.descriptors = transfer.descriptors or descriptors or 0
        self._emit_wire(transfer, "ok", figures)

    def _emit_wire(self, transfer: Transfer, outcome: str, figures: Mapping[str, int | None]) -> None:
        done = transfer.done or transfer.posted
        landed_after = max(transfer.posted, transfer.last_pending)
        attributes = self._of_transfer(transfer, outcome) | {
            "landed_after_ns": self._factory.unix(landed_after),
            "landed_before_ns": self._factory.unix(done),
            "polls": transfer.polls,
            "poll_thread": transfer.poll_thread,
            **figures,
        }
        self._emit(transfer.request_id, names.WIRE, transfer.posted, done, attributes, error=outcome == "error")

    def _of_transfer(self, transfer: Transfer, outcome: str) -> dict[str, Any]:
        engine = self._known.peers.get(transfer.request_id or "", (None, None))[0]
        if engine is None:
            engine = self._known.paired.get(transfer.request_id or "", (None, None))[1]
        return {
            "direction": transfer.operation, "descriptors": transfer.descriptors, "rank": self.rank,
            "peer_engine_id": engine, "peer_request_id": transfer.peer_request_id, "outcome": outcome,
        }  # fmt: skip

    # -- push: registrations and pairing ------------------------------------------------------------------

    def _pair(self, request_id: str, peer_request_id: str) -> None:
        if request_id in self._known.paired:
            return
        seen, engine_id = self._known.registrations.pop(peer_request_id, (None, None))
        ready = self._known.blocks_ready.pop(request_id, None)
        self._put(self._known.paired, request_id, (peer_request_id, engine_id))
        if seen is None or ready is None:
            return
        self._emit(request_id, names.PAIRING, min(seen, ready), max(seen, ready), {
            "late_side": "prefill" if ready >= seen else "decode", "late_ns": abs(ready - seen),
            "registration_seen_ns": self._factory.unix(seen), "blocks_ready_ns": self._factory.unix(ready),
            "peer_request_id": peer_request_id, "peer_engine_id": engine_id, "outcome": "paired", "rank": self.rank,
        })  # fmt: skip

    def _on_registration(self, at: int, message: bytes) -> None:
        data = decode_registration(message)
        if data is not None:
            self._put(self._known.registrations, data["request_id"], (at, data.get("decode_engine_id")))

    def _on_sent(self, event: Event) -> None:
        _, start, end, message, thread, ok = event
        if not message.startswith(PUSH_REGISTRATION_PREFIX):
            return
        data = decode_registration(message)
        if data is not None:
            attributes = {"bytes": len(message), "thread": thread, "rank": self.rank}
            attributes["peer_engine_id"] = data.get("remote_engine_id")
            self._emit(data["request_id"], names.REGISTRATION_SEND, start, end, attributes, error=not ok)

    def _on_unpaired(self, request_id: str, at: int) -> None:
        ready = self._known.blocks_ready.pop(request_id, None)
        if ready is not None and request_id not in self._known.paired:
            self._emit(request_id, names.PAIRING, ready, at, {
                "blocks_ready_ns": self._factory.unix(ready), "late_side": "decode", "outcome": "unpaired",
                "rank": self.rank,
            }, error=True)  # fmt: skip

    # -- completion -----------------------------------------------------------------------------------------

    def _on_notified(self, event: Event) -> None:
        _, at, messages, thread = event
        for message in messages:
            if message.startswith(PUSH_REGISTRATION_PREFIX):
                self._on_registration(at, message)
            elif message.startswith(HEARTBEAT_PREFIX):
                for request_id in message[len(HEARTBEAT_PREFIX) :].decode("utf-8", "replace").split(","):
                    count = self._known.heartbeats.get(request_id, (0, 0))[0] + 1
                    self._put(self._known.heartbeats, request_id, (count, self._factory.unix(at)))
            else:
                self._on_completion_notified(at, message.rsplit(b":", 1)[0].decode("utf-8", "replace"), thread)

    def _on_completion_notified(self, at: int, request_id: str, thread: str) -> None:
        if request_id in self._known.peers:
            self._put(self._known.seen, request_id, at)
        else:
            self._put(self._known.ended, request_id, "read")
        self._emit(request_id, names.NOTIFICATION, at, at, {"rank": self.rank, "thread": thread})

    def _on_results(self, event: Event) -> None:
        _, at, received, sent, failed = event
        for request_id in received:
            seen = self._known.seen.pop(request_id, None)
            bad = request_id in failed
            # The worker tries nothing when it has given up the other engine before.
            blame = self._known.blames.pop(request_id, "remote_unknown")
            if seen is not None or bad:
                attributes = {"rank": self.rank, "outcome": "failed" if bad else "ok", "reason": blame if bad else None}
                self._emit(request_id, names.COMPLETION, seen or at, at, attributes, error=bad)
            self._forget_received(request_id)
        for request_id in sent:
            if request_id in self._causes:
                # Some versions report through two facade methods, one calling the other.
                continue
            self._on_unpaired(request_id, at)
            outcome = self._known.ended.pop(request_id, "expired")
            self._causes[request_id] = Cause(outcome, *self._known.heartbeats.pop(request_id, (0, 0)))
            while len(self._causes) > self._limit:
                self._causes.pop(next(iter(self._causes)))
            self._known.paired.pop(request_id, None)
            self._known.seen.pop(request_id, None)

    def _forget_received(self, request_id: str) -> None:
        peer = self._known.peers.pop(request_id, (None, None))[1]
        readers = self._known.by_peer.get(peer or "", [])
        if request_id in readers:
            readers.remove(request_id)
            if not readers:
                self._known.by_peer.pop(peer or "", None)

    # -- handshake and failures ---------------------------------------------------------------------------

    def _on_handshake(self, event: Event) -> None:
        _, start, end, peer_engine_id, reason, notif_only = event
        attributes = {
            "peer_engine_id": peer_engine_id, "outcome": "error" if reason else "ok", "reason": reason or None,
            "notif_only": notif_only, "rank": self.rank,
        }  # fmt: skip
        self._put(self._known.refusals, peer_engine_id, reason)
        trace_id = derive_trace_id(f"handshake {self._factory.engine_id} {peer_engine_id} {self.rank} {start}")
        self._factory.emit(names.HANDSHAKE, trace_id, start, end, attributes, error=bool(reason))

    def _on_failure(self, event: Event) -> None:
        _, at, failure_type, request_id, error_type, peer_engine_id = event
        attributes = {
            "failure_type": failure_type, "error_type": error_type or None, "peer_engine_id": peer_engine_id,
            "rank": self.rank,
        }  # fmt: skip
        if request_id is not None:
            self._blame(request_id, failure_type)
        self._emit(request_id, names.FAILURE, at, at, attributes, error=True)

    def _blame(self, request_id: str, failure_type: str) -> None:
        blame = "failed"
        if failure_type.startswith("handshake"):
            engine_id = self._known.peers.get(request_id, (None, None))[0]
            mismatch = self._known.refusals.get(engine_id or "") == "engine_id_mismatch"
            blame = "foreign_engine" if mismatch else "remote_unknown"
        self._put(self._known.blames, request_id, blame)

    def _on_read_check(self, event: Event) -> None:
        _, _, request_id, _engine_id, _offset, _blocks, expired = event
        if expired and request_id is not None:
            self._put(self._known.blames, request_id, "expired")

    # -- helpers --------------------------------------------------------------------------------------------

    def _emit(
        self, request_id: str | None, name: str, start: int, end: int, attributes: Attributes, *, error: bool = False
    ) -> None:
        if request_id is None:
            trace_id = derive_trace_id(f"{name} {self._factory.engine_id} {start}")
            self._factory.emit(name, trace_id, start, end, attributes, error=error)
            return
        attributes = with_request(request_id, attributes)
        span_id = derive_span_id(self._factory.engine_id, name, self.rank, start, end, request_id)
        self._factory.emit(
            name, self._traces.trace_id(request_id), start, end, attributes,
            span_id=span_id, parent_id=self._factory.root_id(request_id), error=error,
        )  # fmt: skip

    def _put(self, table: OrderedDict[Any, V], key: Any, value: V) -> None:
        table[key] = value
        self._trim(table)

    def _trim(self, table: OrderedDict[Any, V]) -> None:
        while len(table) > self._limit:
            table.popitem(last=False)
            self.evicted += 1
