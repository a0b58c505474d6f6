"""What passed between processes of different boots, as (sender's stamp, receiver's stamp): one row per message.

Only causes count: a message's stamps are taken at or before its sending and at or after its receipt, so that received
less sent is never negative in true time. `docs/clocks.md` lists them. Rows of requests whose sides were joined by their
place in time only are left out: that join would assume what is asked.
"""

from __future__ import annotations

import polars as pl

from ..attempts import LEVELS

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

COLUMNS = ("kind", "sender", "receiver", "sent", "received")


def list_messages(engines: pl.DataFrame, routers: pl.DataFrame, transfers: pl.DataFrame) -> pl.DataFrame:
    """List the messages between clocks.

    engines, routers, transfers: rows of sql/milestones.sql, sql/routers.sql and sql/messages.sql.
    Returns kind, sender, receiver (boot ids), sent and received (Unix ns, each on its own clock).
    """
    # A router that does not say when D's first token came says when it went on to the client.
    seen = pl.coalesce("r_decode_first", "r_first_byte")
    joined = join_exact(engines, routers.with_columns(r_decode_first=seen))
    both = engines.filter(pl.col("p_id").is_not_null(), pl.col("d_id").is_not_null())
    parts = [_take(joined, ends) for ends in ROUTED]
    parts += [_take(both.filter(pl.col("mode") != "push"), ends) for ends in HANDED]
    parts.append(transfers.select(COLUMNS))
    return pl.concat(parts).filter(pl.col("sender") != pl.col("receiver"))


def join_exact(engines: pl.DataFrame, routers: pl.DataFrame) -> pl.DataFrame:
    """Join attempts and router requests whose identity occurs once on either side; each row is taken once."""
    left, right = routers.with_row_index("r_row"), engines.with_row_index("e_row")
    matches = []
    for router_side, engine_side in LEVELS:
        pairs = _pick_unique(left, router_side).join(
            _pick_unique(right, engine_side), left_on=router_side, right_on=engine_side, how="inner"
        )
        matches.append(pairs.select("r_row", "e_row"))
        left = left.join(pairs, on="r_row", how="anti")
        right = right.join(pairs, on="e_row", how="anti")
    met = pl.concat(matches)
    return met.join(routers.with_row_index("r_row"), on="r_row").join(engines.with_row_index("e_row"), on="e_row")


def _pick_unique(frame: pl.DataFrame, identity: tuple[str, ...]) -> pl.DataFrame:
    row = "r_row" if "r_row" in frame.columns else "e_row"
    known = frame.select(row, *identity).filter(
        pl.all_horizontal(pl.col(name).is_not_null() & (pl.col(name) != "") for name in identity)
    )
    return known.filter(pl.len().over(*identity) == 1)


def _take(frame: pl.DataFrame, ends: Ends) -> pl.DataFrame:
    kind, sender, receiver, sent, received = ends
    known = frame.filter(pl.all_horizontal(pl.col(name).is_not_null() for name in ends[1:]))
    known = known.filter((pl.col(sender) != "") & (pl.col(receiver) != ""))
    renamed = {"sender": sender, "receiver": receiver, "sent": sent, "received": received}
    return known.select(kind=pl.lit(kind), **{name: pl.col(column) for name, column in renamed.items()})
