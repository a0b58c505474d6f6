"""What passed between processes of different boots, as (sender's stamp, receiver's stamp): one row per message.

Only causes count: a message's stamps are taken at or before its sending and at or after its receipt, so that received
less sent is never negative in true time. `docs/clocks.md` lists them. Rows of requests whose sides were joined by their
place in time only are left out: that join would assume what is asked.
"""

from __future__ import annotations

import polars as pl

from ..attempts import LEVELS, join_rows, leave_out

Ends = tuple[str, str, str, str, str]

ROUTED: tuple[Ends, ...] = (
    ("router to prefill", "r_boot", "p_boot", "r_prefill_start", "p_start"),
    ("prefill to router", "p_boot", "r_boot", "p_end", "r_prefill_end"),
    ("router to decode", "r_boot", "d_boot", "r_decode_start", "d_start"),
    ("decode to router", "d_boot", "r_boot", "d_first", "r_decode_first"),
)
HANDED: tuple[Ends, ...] = (
    # A pull's decode leg names P's request: the router had it from P's answer.
    ("hand-over", "p_boot", "d_boot", "p_end", "d_start"),
)

MOST = 60_000
"""Attempts to look at: of a hundred messages in a while only the quickest say something, and of fifty they are nearly
as quick."""
LEAST = 4_000
"""A clock with fewer attempts than this is looked at in all of them."""

COLUMNS = ("kind", "sender", "receiver", "sent", "received")
KINDS = pl.Enum([*(ends[0] for ends in (*ROUTED, *HANDED)), "notification", "release", "registration", "lease"])
BOOTS = ("r_boot", "p_boot", "d_boot")


def choose_stride(engines: pl.DataFrame) -> int:
    """Choose n for looking at one in n attempts: 1, unless there are many of every clock."""
    counts = [engines[f"{side}_boot"].drop_nulls().value_counts()["count"] for side in ("p", "d")]
    least = min((count for side in counts for count in side.to_list()), default=0)
    return max(min(engines.height // MOST, least // LEAST), 1)


def list_messages(
    engines: pl.DataFrame, routers: pl.DataFrame, met: pl.DataFrame, transfers: pl.DataFrame, one_in: int = 1
) -> pl.DataFrame:
    """List the messages between clocks.

    engines, routers, transfers: rows of sql/milestones.sql, sql/routers.sql and sql/messages.sql. met: rows of the
    first two that are one request (attempts.pick_single_pairs). one_in: look at one in so many attempts, drawn by
    identity.
    Returns kind, sender, receiver (boot ids), sent and received (Unix ns, each on its own clock); the words are Enums.
    """
    clocks = pl.Enum(list_boots(engines, routers, transfers))
    # A router that does not say when D's first token came says when it went on to the client.
    seen = pl.coalesce("r_decode_first", "r_first_byte")
    asked = _name_clocks(routers.with_columns(r_decode_first=seen), clocks, ROUTED, ("r_trace", "r_key"))
    served = _name_clocks(engines, clocks, (*ROUTED, *HANDED), ("mode", "p_trace", "p_key", "d_trace", "d_key"))
    if one_in > 1:
        joined = served = join_rows(met.filter(pl.col("identity") % one_in == 0), served, asked)
    else:
        joined = join_exact(served, asked, met)
    parts = [_take(joined, ends) for ends in ROUTED]
    parts += [_take(served.filter(pl.col("mode") != "push"), ends) for ends in HANDED]
    parts.append(transfers.select(pl.col("kind").cast(KINDS), pl.col("sender", "receiver").cast(clocks), *COLUMNS[3:]))
    return pl.concat(parts).filter(pl.col("sender") != pl.col("receiver"))


def list_boots(engines: pl.DataFrame, routers: pl.DataFrame, transfers: pl.DataFrame) -> list[str]:
    """List the boots that any frame names, in order."""
    columns = (*(frame[name] for frame in (engines, routers) for name in BOOTS if name in frame.columns),
               transfers["sender"], transfers["receiver"])  # fmt: skip
    return sorted({boot for column in columns for boot in column.unique() if boot})


def _name_clocks(
    frame: pl.DataFrame, clocks: pl.Enum, messages: tuple[Ends, ...], identity: tuple[str, ...]
) -> pl.DataFrame:
    """Keep what messages are made of, with the boots as small numbers and NULL where one is unknown."""
    stamps = {name for ends in messages for name in ends[3:]}
    boots = (pl.col(name).replace("", None).cast(clocks) for name in BOOTS if name in frame.columns)
    return frame.select(*boots, *(name for name in frame.columns if name in stamps), *identity)


def join_exact(engines: pl.DataFrame, routers: pl.DataFrame, met: pl.DataFrame) -> pl.DataFrame:
    """Join attempts and router requests whose identity occurs once on either side; each row is taken once.

    met: those whose most exact identity does.
    """
    single = join_rows(met, engines, routers)
    routers, engines = leave_out(routers, met, "r_row"), leave_out(engines, met, "e_row")
    left, right = routers.with_row_index("r_row"), engines.with_row_index("e_row")
    matches = []
    for router_side, engine_side in LEVELS:
        pairs = _pick_unique(left, router_side).join(
            _pick_unique(right, engine_side), left_on=router_side, right_on=engine_side, how="inner"
        )
        matches.append(pairs.select("r_row", "e_row"))
        left = left.join(pairs, on="r_row", how="anti")
        right = right.join(pairs, on="e_row", how="anti")
    return pl.concat([single, join_rows(pl.concat(matches), engines, routers)])


def _pick_unique(frame: pl.DataFrame, identity: tuple[str, ...]) -> pl.DataFrame:
    row = "r_row" if "r_row" in frame.columns else "e_row"
    known = frame.select(row, *identity).filter(
        pl.all_horizontal(pl.col(name).is_not_null() & (pl.col(name) != "") for name in identity)
    )
    return known.filter(pl.len().over(*identity) == 1)


def _take(frame: pl.DataFrame, ends: Ends) -> pl.DataFrame:
    kind, sender, receiver, sent, received = ends
    known = frame.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in ends[1:]))
    renamed = {"sender": sender, "receiver": receiver, "sent": sent, "received": received}
    return known.select(kind=pl.lit(kind, KINDS), **{name: pl.col(column) for name, column in renamed.items()})
