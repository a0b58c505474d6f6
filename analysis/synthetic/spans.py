"""True times -> spans as each process would have emitted them, one frame per kind of span, losses taken out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from .fleet import Engine, Fleet, Times
from .identity import Identities
from .parameters import MS, SECOND, Parameters
from .timeline import Truth, Workload

Values = Any
NEVER = np.iinfo(np.int64).max
LAST_EXPORT_NS = SECOND // 2
"""A killed engine takes the spans of about the last half second with it: they were not exported yet."""


@dataclass(frozen=True)
class Kind:
    """Spans of one name: who emitted them, when, and with which attributes.

    attributes: texts, whole numbers or booleans, as arrays or as one value for all; None: absent. process, begin, end:
    arrays of one length; times are Unix ns as stamped. parent: span ids.
    """

    name: str
    number: int
    process: Times
    begin: Times
    end: Times
    trace: pl.Series
    span: pl.Series
    parent: pl.Series | None
    attributes: dict[str, Values]


class Emitter:
    """Emits the spans of some requests (a slice of the run)."""

    def __init__(  # noqa: PLR0917
        self, p: Parameters, fleet: Fleet, w: Workload, truth: Truth, ids: Identities, rows: slice, seed: int
    ) -> None:
        self.p, self.fleet, self.ids = p, fleet, ids
        self.w = w
        self.rows = np.arange(len(w.sent))[rows]
        self.at = {name: values[rows].astype(np.int64) for name, values in truth.at.items()}
        self.shaking = {name: values[rows] for name, values in truth.shaking.items()}
        self.rng = np.random.default_rng([seed, self.rows[0] if len(self.rows) else 0])
        self.push = w.push[rows]
        self.prefill, self.decode, self.router = w.prefill[rows], w.decode[rows], w.router[rows]
        self.broken = find_broken(fleet, w, truth)[rows]
        self.roots = {side: ids.draw(self.rng, len(self.rows)) for side in ("p", "d", "r")}

    def emit(self) -> Iterator[Kind]:
        """Yield every kind."""
        yield from self._emit_router()
        yield from self._emit_prefill()
        yield from self._emit_decode()
        for rank in range(self.p.ranks):
            yield from self._emit_rank(rank)

    def _emit_router(self) -> Iterator[Kind]:
        at, broken = self.at, self.broken
        failed = at["end"] > broken
        common = {"request_id": self.ids.router_ids(self.rows), "request_key": self.ids.keys(self.rows)}
        # Pull: without P's answer there is no decode leg.
        answered = self.push | (at["p_answer"] <= broken)
        first = _absent(at["r_first"], at["r_first"] > broken)
        written = _absent(at["first_byte"], at["first_byte"] > broken)
        status = np.where(failed, "error", "ok")
        process = self.fleet.locate(self.fleet.routers, self.router, at["router"], -1)

        def make(name: str, begin: str, end: str, keep: Any, *, leg: bool = True, **attributes: Values) -> Kind:
            finish = np.minimum(at[end], _after(broken))
            parent, number, own = (self.roots["r"], 3, None) if leg else (None, 2, "r")
            return self._make(
                name, process, at[begin], finish, keep, parent, number, own, {**common, **attributes}, spared=True
            )

        prefilled = np.where(at["p_answer"] > broken, "error", "ok")
        yield make("router.prefill", "p_sent", "p_answer", None, peer_engine_id=self._name("p"), status=prefilled)
        yield make(
            "router.decode", "d_sent", "d_last", answered, peer_engine_id=self._name("d"),
            first_byte_ns=_Stamp(first), status=status,
        )  # fmt: skip
        yield make(
            "router.request", "router", "end", None, leg=False, streaming=True,
            mode=np.where(self.push, "push", "pull"),
            client_sent_ns=_Stamp(at["sent"]), first_byte_ns=_Stamp(written),
            prompt_tokens=self.w.prompt[self.rows], status=status,
            error=_absent(np.full(len(failed), "engine connection lost", dtype=object), ~failed),
        )  # fmt: skip

    def _emit_prefill(self) -> Iterator[Kind]:
        at, prompt = self.at, self.w.prompt[self.rows]
        process = self.fleet.locate(self.fleet.prefill, self.prefill, at["p_start"], -1)
        chunks = -(-prompt // self.p.max_batched_tokens)
        blocks = -(-prompt // self.p.block_tokens)

        def make(name: str, begin: str, end: str, root: bool = False, **attributes: Values) -> Kind:
            return self._make(
                name, process, at[begin], at[end], None, self.roots["p"], 2 if root else 1, "p" if root else None,
                {**self._common("p"), **attributes},
            )  # fmt: skip

        yield make("prefill.queue", "p_start", "p_sched")
        yield make("prefill.compute", "p_sched", "p_end", chunks=chunks)
        yield make(
            "prefill", "p_start", "p_end", root=True, prompt_tokens=prompt, cached_tokens=np.zeros_like(prompt),
            computed_tokens=prompt, chunks=chunks, blocks=blocks, finish_reason="finished_length_capped",
        )  # fmt: skip
        yield make(
            "lease", "p_end", "released", blocks=blocks, outcome=np.where(self.push, "sent", "read"), heartbeats=0
        )

    def _emit_decode(self) -> Iterator[Kind]:
        at, prompt = self.at, self.w.prompt[self.rows]
        process = self.fleet.locate(self.fleet.decode, self.decode, at["d_start"], -1)

        def make(name: str, begin: str, end: str, root: bool = False, **attributes: Values) -> Kind:
            return self._make(
                name, process, at[begin], at[end], None, self.roots["d"], 2 if root else 1, "d" if root else None,
                {**self._common("d"), **attributes},
            )  # fmt: skip

        yield make("decode.admission", "d_start", "d_alloc", attempts=1)
        yield make("decode.remote_wait", "d_alloc", "d_told", outcome="ok")
        yield make("decode.queue", "d_told", "d_sched")
        yield make("decode.first_step", "d_sched", "d_first", steps=1)
        peer = self.ids.prefill_ids(self.rows)
        yield make(
            "decode", "d_start", "d_end", root=True, prompt_tokens=prompt, external_tokens=prompt, local_tokens=0,
            output_tokens=self.w.output[self.rows], finish_reason="finished_length_capped",
            peer_request_id=_absent(peer.to_numpy(), self.push), peer_engine_id=self._name("p"),
        )  # fmt: skip

    def _emit_rank(self, rank: int) -> Iterator[Kind]:
        at = {
            name: values[:, rank] if name.startswith("r_") and values.ndim == 2 else values
            for name, values in self.at.items()
        }
        push, pull = self.push, ~self.push
        p_side = self.fleet.locate(self.fleet.prefill, self.prefill, at["p_start"], rank)
        d_side = self.fleet.locate(self.fleet.decode, self.decode, at["d_start"], rank)
        poster = np.where(push, p_side, d_side)

        def make(  # noqa: PLR0917
            name: str, process: Times, begin: Times, end: Times, keep: Any, side: str, **attributes: Values
        ) -> Kind:
            own = {**self._common(side), **attributes, "rank": rank}
            return self._make(
                name, process, begin, end, keep, self._root(side), 1, None, own
            )  # fmt: skip

        yield from self._emit_handshakes(rank, p_side, d_side)
        yield make(
            "registration.send", d_side, at["r_send"], at["r_sent"], push, "d", bytes=244, thread="nixl-push-writer",
            peer_engine_id=self._name("p"),
        )  # fmt: skip
        seen, blocks = at["r_seen"], at["r_blocks"]
        p_ids, d_ids = self.ids.prefill_ids(self.rows), self.ids.decode_ids(self.rows)
        late = np.where(seen > blocks, "decode", "prefill")
        yield make(
            "pairing", p_side, np.minimum(seen, blocks), np.maximum(seen, blocks), push, "p", late_side=late,
            late_ns=np.abs(seen - blocks), registration_seen_ns=_Stamp(seen), blocks_ready_ns=_Stamp(blocks),
            peer_request_id=d_ids, peer_engine_id=self._name("d"), outcome="paired",
        )  # fmt: skip
        prompt = self.w.prompt[self.rows]
        moved = prompt * self.p.kv_bytes_per_token // self.p.ranks
        transfer = {
            "direction": np.where(push, "WRITE", "READ"),
            "descriptors": -(-prompt // self.p.block_tokens) * self.p.descriptors_per_block,
            "peer_engine_id": np.where(push, self._name("d"), self._name("p")),
            "peer_request_id": np.where(push, d_ids.to_numpy(), p_ids.to_numpy()),
            "outcome": "ok",
        }
        took_us = (at["r_done"] - at["r_post"]) // 1000
        yield make(
            "post", poster, at["r_post"], at["r_posted"], None, "x", **transfer,
            thread=np.where(push, "nixl-push-writer", "MainThread"), prep_ns=(at["r_posted"] - at["r_post"]) // 3,
        )  # fmt: skip
        yield make(
            "wire", poster, at["r_posted"], at["r_done"], None, "x", **transfer,
            landed_after_ns=_Stamp(at["r_progress"]),
            landed_before_ns=_Stamp(at["r_done"]), polls=3, nixl_post_us=(at["r_posted"] - at["r_post"]) // 1000,
            nixl_xfer_us=took_us, bytes=moved,
        )  # fmt: skip
        hearer = np.where(push, d_side, p_side)
        yield make("notification", hearer, at["r_notified"], at["r_notified"], None, "h", thread="nixl-push-writer")
        done = np.where(push, at["r_notified"], at["r_done"])
        yield make("completion", d_side, done, at["r_reported"], push | pull, "d", outcome="ok")

    def _emit_handshakes(self, rank: int, p_side: Times, d_side: Times) -> Iterator[Kind]:
        for side, process, peer in (("d", d_side, "p"), ("p", p_side, "d")):
            rows = np.flatnonzero(self.shaking[f"{side}_begins"][:, rank])
            # An infinite time is that of a handshake that never happens; only those that begin are rows here.
            begin, end = (
                self.shaking[name][rows, rank].astype(np.int64) for name in (f"{side}_shake", f"{side}_shaken")
            )
            keep = end < _lost_from(self.fleet, process[rows])
            rows, begin, end = rows[keep], begin[keep], end[keep]
            yield Kind(
                "handshake", 1, process[rows], self.fleet.stamp(process[rows], begin),
                self.fleet.stamp(process[rows], end),
                self.ids.draw_traces(self.rng, len(rows)), self.ids.draw(self.rng, len(rows)), None,
                {
                    "peer_engine_id": self._name(peer)[rows], "outcome": "ok",
                    "notif_only": np.full(len(rows), side == "d") & self.push[rows], "rank": rank,
                },
            )  # fmt: skip

    def _make(  # noqa: PLR0917
        self, name: str, process: Times, begin: Times, end: Times, keep: Any, parent: pl.Series | None, number: int,
        own: str | None, attributes: dict[str, Values], *, spared: bool = False,
    ) -> Kind:  # fmt: skip
        kept = np.ones(len(begin), dtype=bool) if keep is None else keep.copy()
        if spared:
            kept &= begin <= self.broken
        else:
            kept &= (end <= self.broken) & (end < _lost_from(self.fleet, process))
        if self.p.drop:
            kept &= self.rng.random(len(begin)) >= self.p.drop
        rows = np.flatnonzero(kept)
        process = process[rows]
        span = self.roots[own][rows] if own else self.ids.draw(self.rng, len(rows))
        return Kind(
            name, number, process, self.fleet.stamp(process, begin[rows]), self.fleet.stamp(process, end[rows]),
            self.ids.traces(self.rows)[rows], span, parent[rows] if parent is not None and own is None else None,
            {key: self._take(values, rows, process) for key, values in attributes.items()},
        )  # fmt: skip

    def _take(self, values: Values, rows: Times, process: Times) -> Values:
        if isinstance(values, _Stamp):
            true = values.true[rows]
            stamped = self.fleet.stamp(process, np.where(true == NEVER, 0, true))
            return pl.Series(stamped).set(pl.Series(true == NEVER), None) if (true == NEVER).any() else stamped
        return values[rows] if isinstance(values, (np.ndarray, pl.Series)) else values

    def _common(self, side: str) -> dict[str, Values]:
        own = {"p": self.ids.prefill_ids, "d": self.ids.decode_ids}
        if side in own:
            ids: Values = own[side](self.rows)
        else:
            poster_is_p = self.push if side == "x" else ~self.push
            ids = np.where(
                poster_is_p, self.ids.prefill_ids(self.rows).to_numpy(), self.ids.decode_ids(self.rows).to_numpy()
            )
        return {"request_id": ids, "request_key": self.ids.keys(self.rows)}

    def _root(self, side: str) -> pl.Series:
        if side in self.roots:
            return self.roots[side]
        is_p = pl.Series(self.push if side == "x" else ~self.push)
        return self.roots["p"].zip_with(is_p, self.roots["d"])

    def _name(self, side: str) -> Any:
        engines, choice = (self.fleet.prefill, self.prefill) if side == "p" else (self.fleet.decode, self.decode)
        return np.array([engine.name for engine in engines], dtype=object)[choice]


@dataclass(frozen=True)
class _Stamp:
    """An attribute that holds a time of the span's own process."""

    true: Times


def _absent(values: Any, where: Any) -> Any:
    if values.dtype == np.int64:
        return np.where(where, NEVER, values)
    some = np.array(values, dtype=object)
    some[where] = None
    return some


def _after(broken: Times) -> Times:
    """When the router notices a broken connection."""
    noticed: Times = np.where(broken == NEVER, NEVER, np.minimum(broken, NEVER - 5 * MS) + 5 * MS)
    return noticed


def find_broken(fleet: Fleet, w: Workload, truth: Truth) -> Times:
    """Return when a request lost one of its engines while it needed it (true ns), NEVER if it did not."""
    at = truth.at

    def killed(engines: tuple[Engine, ...], choice: Times, begin: Any, end: Any) -> Times:
        when = np.array([NEVER if engine.killed is None else engine.killed for engine in engines])[choice]
        hit: Times = np.where((when >= begin) & (when < end), when, NEVER)
        return hit

    landed = at["r_landed"].max(axis=1)
    return np.minimum(
        killed(fleet.prefill, w.prefill, at["p_start"], landed),
        killed(fleet.decode, w.decode, at["d_start"], at["d_end"]),
    )


def _lost_from(fleet: Fleet, process: Times) -> Times:
    """Return from when on a process exported nothing any more (true ns)."""
    killed = {
        engine.name: engine.killed - LAST_EXPORT_NS
        for engine in (*fleet.prefill, *fleet.decode)
        if engine.killed is not None
    }
    table = fleet.processes
    lost = np.array([
        killed[engine] if engine in killed and life == 0 else NEVER
        for engine, life in zip(table["engine"], table["generation"], strict=True)
    ])  # fmt: skip
    found: Times = lost[process]
    return found
