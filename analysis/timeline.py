"""Chosen requests of a run -> a timeline: engines as processes, threads and lanes as tracks, arrows along the way.

Arrows follow the request: router -> prefill -> (push: registration -> seen by P -> paired) -> post -> wire ->
completion -> first step. Each rank has its own chain from post to completion.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import polars as pl

from exporters.perfetto.timeline import Counter, Flow, Process, Slice, Timeline

Row = dict[str, Any]

CATEGORY = {
    "prefill.queue": "queue", "prefill.compute": "compute", "decode.admission": "queue", "decode.queue": "queue",
    "decode.first_step": "compute", "decode.remote_wait": "coordination", "registration.send": "coordination",
    "pairing": "coordination", "post": "coordination", "wire": "transfer", "completion": "coordination",
    "notification": "coordination", "handshake": "coordination", "failure": "failure", "lease": "memory",
    "prefill.remote_wait": "transfer", "decision": "coordination", "validation": "failure",
}  # fmt: skip
INSTANTS = ("notification", "failure", "validation")
ON_THREAD = ("post", "registration.send", "notification")
PROCESS_ORDER = {"router": 0, "prefill": 1, "both": 2, "decode": 3}
REQUESTS, LEASES, PAIRINGS, HANDSHAKES = "requests", "leases", "pairing", "handshakes"
TRACK_ORDER = (REQUESTS, PAIRINGS, LEASES, HANDSHAKES)
LEVELS = {
    "held_blocks": ("held blocks (open leases)", "blocks"),
    "transfers_in_flight": ("transfers in flight", "transfers"),
    "queued_requests": ("queued requests", "requests"),
    "awaiting_kv_requests": ("requests awaiting KV", "requests"),
}
# Keys of equal moments sort by these, so that a registration that was the last to come is seen before it is paired.
SEEN, PAIRED = "1 registration seen", "2 paired"


def build_timeline(spans: pl.DataFrame, levels: pl.DataFrame, requests: pl.DataFrame) -> Timeline:
    """Build the timeline of some requests.

    spans: rows of sql/timeline.sql. levels: rows of sql/load_levels.sql. requests: p_id and d_id of each request.
    Counters are of the whole engine, not of these requests only, cut to the time that the slices cover.
    """
    rows = keep_relevant(list(spans.iter_rows(named=True)))
    if not rows:
        return Timeline((), ())
    slices = [piece for row in rows for piece in _slice(row)]
    window = (min(piece.begin for piece in slices), max(piece.end for piece in slices))
    return Timeline(
        processes=tuple(_list_processes(rows)),
        slices=tuple(slices),
        flows=tuple(dict.fromkeys(_link(rows, requests))),
        counters=tuple(_count(levels, {row["engine"] for row in rows}, *window)),
        track_order=TRACK_ORDER,
    )


def keep_relevant(rows: list[Row]) -> list[Row]:
    """Drop handshakes outside the time that the requests cover, and what was exported twice."""
    rows = list({row["span_id"]: row for row in rows}.values())
    own = [row for row in rows if row["name"] != "handshake"]
    if not own:
        return []
    low, high = min(row["begin"] for row in own), max(row["finish"] for row in own)
    return [row for row in rows if row["name"] != "handshake" or (row["finish"] >= low and row["begin"] <= high)]


def encode_names(values: Iterable[str | None]) -> str:
    """Encode ids for the array parameters of sql/timeline.sql."""
    return json.dumps(sorted({value for value in values if value}))


def _list_processes(rows: list[Row]) -> Iterator[Process]:
    seen: dict[str, Row] = {}
    for row in rows:
        seen.setdefault(row["engine"], row)
    ordered = sorted(seen.values(), key=lambda row: (PROCESS_ORDER.get(row["role"], 9), row["engine"]))
    for order, row in enumerate(ordered):
        name = f"{row['role'] or row['service']} {row['engine']} on {row['host']}"
        yield Process(row["engine"], name, row["pid"], order)


def _slice(row: Row) -> Iterator[Slice]:
    name, rank = row["name"], row["rank"] or "0"
    thread = row["thread"] if name in ON_THREAD else ""
    attributes: dict[str, str | int] = {
        key.removeprefix("kv_transfer."): int(value) if value.lstrip("-").isdigit() and len(value) < 19 else value
        for key, value in zip(row["attribute_names"], row["attribute_values"], strict=True)
    }
    if row["is_error"]:
        attributes["error"] = "true"
    owner = row["request_id"] or row["request_key"]
    if name.startswith("router."):
        label = f"{name} {row['request_key']}"
    else:
        label = f"{name} {row['request_key']}" if name in ("prefill", "decode") else name
    track = _choose_track(name, thread, rank)
    common: dict[str, Any] = {
        "process": row["engine"], "track": track, "owner": owner, "category": CATEGORY.get(name, "request"),
        "is_thread": bool(thread),
    }  # fmt: skip
    yield Slice(
        key=row["span_id"], name=label, begin=row["begin"], end=row["finish"], is_instant=name in INSTANTS,
        attributes=attributes, **common,
    )  # fmt: skip
    if name == "pairing" and row["registration_seen"] is not None:
        # Arrows need something that is later than their source: the pairing itself begins with whoever came first.
        seen = min(max(row["registration_seen"], row["begin"]), row["finish"])
        for what, at in ((SEEN, seen), (PAIRED, row["finish"])):
            yield Slice(
                f"{row['span_id']} {what}", name=f"pairing: {what[2:]}", begin=at, end=at, is_instant=True, **common
            )


def _choose_track(name: str, thread: str, rank: str) -> str:
    if thread:
        return f"{thread} (rank {rank})"
    if name.startswith(("prefill", "decode", "router.")):
        return REQUESTS
    special = {"lease": LEASES, "handshake": HANDSHAKES, "pairing": PAIRINGS}
    return special.get(name, f"{name} (rank {rank})")


def _count(levels: pl.DataFrame, engines: set[str], low: int, high: int) -> Iterator[Counter]:
    """Cut the levels to [low, high]: the last level before it is the first point."""
    for (engine, name), rows in levels.group_by("engine", "level_name", maintain_order=True):
        if engine not in engines:
            continue
        before = rows.filter(pl.col("at") <= low).tail(1)["level"].to_list() or [0]
        inside = rows.filter((pl.col("at") > low) & (pl.col("at") <= high)).select("at", "level").rows()
        label, unit = LEVELS[str(name)]
        yield Counter(str(engine), label, unit, ((low, before[0]), *inside))


def _link(rows: list[Row], requests: pl.DataFrame) -> Iterator[Flow]:
    by_id: dict[str, list[Row]] = defaultdict(list)
    legs: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        by_id[row["request_id"]].append(row)
        if row["name"].startswith("router."):
            legs[row["name"], row["request_key"]].append(row)
    for p_id, d_id in requests.select("p_id", "d_id").iter_rows():
        p, d = by_id.get(p_id or "", []), by_id.get(d_id or "", [])
        keys = {row["request_key"] for row in (*p, *d)}
        for source, target in _list_arrows(p, d):
            yield Flow(source, target)
        for leg, arrivals in (
            ("router.prefill", _find(p, "prefill.queue")),
            ("router.decode", _find(d, "decode.admission")),
        ):
            for arrival in arrivals:
                # Of several attempts with one id, the leg that was sent last before the engine had the request.
                sent = [row for key in keys for row in legs[leg, key] if row["begin"] <= arrival["begin"]]
                if sent:
                    yield Flow(max(sent, key=lambda row: int(row["begin"]))["span_id"], arrival["span_id"])


def _list_arrows(p: list[Row], d: list[Row]) -> Iterator[tuple[str, str]]:
    pairings = [row for row in _find(p, "pairing") if row["registration_seen"] is not None]
    posts, first = _find([*p, *d], "post"), _find(d, "decode.first_step")
    if pairings:
        for pairing in pairings:
            seen, paired = (f"{pairing['span_id']} {what}" for what in (SEEN, PAIRED))
            yield from _pair(_of_rank(d, "registration.send", pairing["rank"]), [seen])
            yield seen, paired
            yield from _pair(_keys(_find(p, "prefill.compute")), [paired])
            yield from _pair([paired], _of_rank(posts, "post", pairing["rank"]))
        yield from _pair(_keys(_find(d, "decode.admission")), _keys(_find(d, "registration.send")))
    else:
        yield from _pair(_keys(_find(p, "prefill.compute")), _keys(_find(d, "decode.admission")))
        yield from _pair(_keys(_find(d, "decode.admission")), _keys(posts))
    for rank in sorted({row["rank"] for row in posts}):
        chain = [_of_rank([*p, *d], name, rank) for name in ("post", "wire")]
        # The consumer is told by its own worker, in push after the notification that follows the bytes.
        chain += [found for name in ("notification", "completion") if (found := _of_rank(d, name, rank))]
        for before, after in zip(chain, (*chain[1:], _keys(first)), strict=True):
            yield from _pair(before, after)


def _find(rows: Iterable[Row], name: str) -> list[Row]:
    return [row for row in rows if row["name"] == name]


def _keys(rows: Iterable[Row]) -> list[str]:
    return [row["span_id"] for row in rows]


def _of_rank(rows: Iterable[Row], name: str, rank: str) -> list[str]:
    return [row["span_id"] for row in rows if row["name"] == name and row["rank"] == rank]


def _pair(before: list[str], after: list[str]) -> Iterator[tuple[str, str]]:
    """Arrows from the n-th to the n-th: several posts of one rank are several transfers; one source may fan out."""
    if not before or not after:
        return
    for place in range(max(len(before), len(after))):
        yield before[min(place, len(before) - 1)], after[min(place, len(after) - 1)]
