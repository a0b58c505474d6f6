"""What the EFA devices of a host counted while each transfer was in flight: frames in, frames out.

A window is [post returned, done first seen]. Counters are known at samples only, so a window gets what they moved by
between the last sample at or before it and the first one at or after it: at least the window, usually more. What other
transfers and other programs moved in that time cannot be told apart; the columns say how much longer the bracket is and
how many transfers share it.
"""

from __future__ import annotations

import polars as pl

PORT = ("host", "device", "port")
TROUBLE = ("retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events")
"""Counters that coincide with a slow transfer when they move."""

# Which counter holds a transfer's bytes on the side that posts, and which one moves for every kind of traffic: on some
# builds writes travel as sends, and rdma_write_bytes stays at zero.
BYTES = {"WRITE": ("rdma_write_bytes", "tx_bytes"), "READ": ("rdma_read_bytes", "rx_bytes")}
COUNTERS = (*(name for pair in BYTES.values() for name in pair), "retrans_bytes", *TROUBLE)

TAIL = 0.95
MIN_CLASS = 20
"""Below so many transfers the 95th percentile is the slowest one, so that a class would always have a tail."""


def accumulate(times: pl.DataFrame, moves: pl.DataFrame) -> pl.DataFrame:
    """Return the run's totals at every sample: PORT, unix_ns, each of COUNTERS since the first sample, and resets.

    times: PORT and unix_ns of every sample. moves: PORT, counter, unix_ns (of the later sample), delta, reset (0 or 1).
    """
    wide = moves.group_by(*PORT, "unix_ns").agg(
        *(pl.col("delta").filter(pl.col("counter") == name).sum().alias(name) for name in COUNTERS),
        resets=pl.col("reset").max().cast(pl.Int64),
    )
    columns = [*COUNTERS, "resets"]
    joined = times.unique().join(wide, on=[*PORT, "unix_ns"], how="left").sort("unix_ns")
    return joined.with_columns(pl.col(columns).fill_null(0)).with_columns(pl.col(columns).cum_sum().over(PORT))


def choose_bytes(totals: pl.DataFrame) -> pl.DataFrame:
    """Return the counter that holds the bytes of each host and direction: (host, direction, counter)."""
    moved = totals.group_by("host").agg(pl.col(name).max() for name in COUNTERS)
    rows = [
        (row["host"], direction, exact if row[exact] else general)
        for row in moved.sort("host").iter_rows(named=True)
        for direction, (exact, general) in BYTES.items()
    ]
    return pl.DataFrame(rows, schema={"host": pl.String, "direction": pl.String, "counter": pl.String}, orient="row")


def bracket(wires: pl.DataFrame, totals: pl.DataFrame) -> pl.DataFrame:
    """Return one row per transfer and port: `wire`, PORT, from_ns, to_ns, and what COUNTERS and resets moved by.

    wires: wire (row number), host, begin, finish. A window that lies outside a port's samples has no row for it. Both
    sides are sorted once and walked once.
    """
    columns = [*COUNTERS, "resets"]
    ports = totals.select(PORT).unique()
    before = totals.select(*PORT, pl.col("unix_ns").alias("from_ns"), pl.col(columns).name.suffix("_0"))
    after = totals.select(*PORT, pl.col("unix_ns").alias("to_ns"), pl.col(columns))
    pairs = wires.select("wire", "host", "begin", "finish").join(ports, on="host").sort("begin")
    started = pairs.join_asof(
        before.sort("from_ns"),
        left_on="begin",
        right_on="from_ns",
        by=list(PORT),
        coalesce=False,
        check_sortedness=False,
    )
    ended = started.sort("finish").join_asof(
        after.sort("to_ns"),
        left_on="finish",
        right_on="to_ns",
        by=list(PORT),
        strategy="forward",
        coalesce=False,
        check_sortedness=False,
    )
    return ended.drop_nulls(["from_ns", "to_ns"]).select(
        "wire", *PORT, "from_ns", "to_ns", *(pl.col(name) - pl.col(f"{name}_0") for name in columns)
    )


def join_transfers(wires: pl.DataFrame, totals: pl.DataFrame) -> pl.DataFrame:
    """Return the transfers, each with what the devices of its host counted around it; null where no samples are.

    wires: rows of sql/wires.sql. Adds duration, tail (mark_tail), from_ns, to_ns (the bracket), rails (device, port and
    bytes, most first), moved (bytes over all rails), TROUBLE, resets, others (transfers posted on this host that were
    in flight in the bracket too), trouble and flagged: it was slow or failed, and the network had trouble.
    """
    numbered = mark_tail(wires).with_row_index("wire")
    around = bracket(numbered, totals).join(numbered.select("wire", "direction"), on="wire")
    general = {direction: pair[1] for direction, pair in BYTES.items()}
    chosen = around.join(choose_bytes(totals), on=["host", "direction"], how="left").with_columns(
        counter=pl.col("counter").fill_null(pl.col("direction").replace_strict(general, default="tx_bytes"))
    )
    moved = pl.coalesce(pl.when(pl.col("counter") == name).then(pl.col(name)) for name in COUNTERS)
    summed = (
        chosen.with_columns(moved=moved)
        .sort("wire", "moved", "device", "port", descending=[False, True, False, False])
        .group_by("wire", maintain_order=True)
        .agg(
            pl.col("from_ns").min(),
            pl.col("to_ns").max(),
            pl.struct("device", "port", bytes="moved").filter(pl.col("moved") > 0).alias("rails"),
            pl.col("moved", *TROUBLE, "resets").sum(),
        )
    )
    joined = numbered.join(summed, on="wire", how="left").sort("wire")
    trouble = pl.sum_horizontal(pl.col(name) for name in TROUBLE) > 0
    known = count_others(joined).with_columns(trouble=pl.when(pl.col("from_ns").is_not_null()).then(trouble))
    slow = pl.col("tail") | ~pl.col("outcome").is_in(["ok", ""])
    return known.with_columns(flagged=(slow & pl.col("trouble")).fill_null(value=False)).drop("wire")


def mark_tail(wires: pl.DataFrame) -> pl.DataFrame:
    """Add duration (ns), size (power of two below the bytes) and tail.

    A transfer is in the tail when it took longer than the 95th percentile of the successful ones of its direction and
    size; null where these are fewer than MIN_CLASS.
    """
    served = pl.col("outcome").is_in(["ok", ""])
    sized = wires.with_columns(
        duration=pl.col("finish") - pl.col("begin"),
        size=pl.when(pl.col("bytes") > 0).then((pl.col("bytes").log(2) + 1e-9).floor().cast(pl.Int64)),
    )
    own, group = pl.col("duration").filter(served), ("direction", "size")
    bounded = sized.with_columns(bound=own.quantile(TAIL, "linear").over(group), members=own.len().over(group))
    judged = served & (pl.col("members") >= MIN_CLASS)
    return bounded.with_columns(tail=pl.when(judged).then(pl.col("duration") > pl.col("bound"))).drop(
        "bound", "members"
    )


def count_others(joined: pl.DataFrame) -> pl.DataFrame:
    """Add `others`: how many other transfers of the same host were in flight at some time in the bracket."""
    parts = []
    for part in joined.partition_by("host", maintain_order=True):
        begun = part["begin"].sort().search_sorted(part["to_ns"], side="right").cast(pl.Int64)
        ended = part["finish"].sort().search_sorted(part["from_ns"], side="left").cast(pl.Int64)
        others = pl.when(pl.col("from_ns").is_not_null()).then(pl.lit(begun) - pl.lit(ended) - 1)
        parts.append(part.with_columns(others=others))
    return pl.concat(parts).sort("wire") if parts else joined.with_columns(others=pl.lit(None, pl.Int64))


def summarize_ports(totals: pl.DataFrame) -> pl.DataFrame:
    """Return one row per port: what COUNTERS moved by over the whole stream, and its resets."""
    return totals.group_by(PORT).agg(pl.col(name).max() for name in (*COUNTERS, "resets")).sort(PORT)


def summarize_classes(transfers: pl.DataFrame) -> pl.DataFrame:
    """Return one row per direction and size: durations, the tail, and how often trouble coincided with it and with the
    rest. The rest is the yardstick: where as much of it coincides, the trouble does not explain the tail.
    """
    known, tail = pl.col("trouble").is_not_null(), pl.col("tail").fill_null(value=False)
    return (
        transfers.group_by("direction", "size")
        .agg(
            transfers=pl.len(),
            p50=pl.col("duration").quantile(0.5, "linear"),
            p95=pl.col("duration").quantile(TAIL, "linear"),
            judged=pl.col("tail").is_not_null().sum(),
            tail=(tail & known).sum(),
            tail_trouble=(tail & pl.col("trouble")).sum(),
            rest=(~tail & known).sum(),
            rest_trouble=(~tail & pl.col("trouble")).sum(),
        )
        .sort("direction", "size")
    )


def find_interval(totals: pl.DataFrame) -> float | None:
    """Return the median time (ns) between two samples of a port, None when no port has two."""
    steps = totals.sort("unix_ns").select(pl.col("unix_ns").diff().over(PORT))["unix_ns"].drop_nulls()
    return None if steps.is_empty() else float(steps.median())  # type: ignore[arg-type]
