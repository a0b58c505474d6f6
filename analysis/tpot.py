"""Engine steps -> TPOT budgets: columnar expressions only, no I/O.

From the end of the step that gave a request's first token to the end of the step that gave its last one, every moment
of the engine is exactly one of: execution, connector time on the engine's thread, gap between two steps, or a step that
ran without the request (preemption, or a scheduler that left it out). So the four sum to the engine's time per token
without a residual; what the client measured of the same request is compared with that sum.
"""

from __future__ import annotations

import polars as pl

DECODE = 1
PARTS = ("execution", "connector", "gap", "preemption")
CONNECTOR_PARTS = ("submit", "poll", "save", "build")

BATCH_EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

BOUND_FACTOR = 2.0
"""An inter-token gap is long above this many times the run's median gap, unless a bound is given."""


def prepare_steps(steps: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Add to the rows of sql/steps.sql what a request in the step pays (ns).

    Adds index (place in its engine's order), connector, execution, gap (since the row before), decoding (requests), and
    the running sums total_<part> of the engine.
    """
    decoding = members.filter(pl.col("kind") == DECODE).group_by("batch", "row").agg(decoding=pl.len().cast(pl.Int64))
    life = ["engine", "life"]
    duration = pl.col("finish") - pl.col("begin")
    prepared = (
        steps.sort([*life, "begin", "step"])
        .join(decoding, on=["batch", "row"], how="left", maintain_order="left")
        .with_columns(pl.col("submit", "poll", "save", "build", "decoding").fill_null(0))
        .with_columns(
            index=pl.int_range(pl.len()).over(life),
            duration=duration,
            # Clocks of two processes of one boot agree; the bound guards against a worker that reports more.
            connector=pl.min_horizontal(pl.sum_horizontal(CONNECTOR_PARTS), duration),
            gap=(pl.col("begin") - pl.col("finish").shift(1).over(life)).fill_null(0).clip(lower_bound=0),
        )
    )
    return prepared.with_columns(execution=pl.col("duration") - pl.col("connector")).with_columns(
        pl.col(name).cum_sum().over(life).alias(f"total_{name}") for name in ("gap", "duration")
    )


def build_tpot(steps: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """Build the budget of every request that decoded.

    steps: rows of prepare_steps. members: rows of sql/step_members.sql.
    Returns one row per engine and request: request_id, engine, intervals (decode steps), tpot_ns (per step), first_end,
    last_end, and per interval <part>_ns of PARTS and CONNECTOR_PARTS, batch_mean (requests decoding beside it, itself
    included) and all of it in ns.
    """
    columns = ["batch", "row", "engine", "life", "index", "finish", "connector", "execution", "duration", "decoding",
               "total_gap", "total_duration", *CONNECTOR_PARTS]  # fmt: skip
    own = members.join(steps.select(columns), on=["batch", "row"]).sort("index")
    # The step that gave the first token is the last one of the prompt; where it wasn't recorded, the first decode step.
    first = (
        own.filter(pl.col("kind") != DECODE)
        .group_by("engine", "life", "request_id")
        .agg(pl.col("index", "finish", "total_gap", "total_duration").last().name.prefix("f_"))
    )
    decode = own.filter(pl.col("kind") == DECODE).join(first, on=["engine", "life", "request_id"], how="left")
    at_start = decode.group_by("engine", "life", "request_id", maintain_order=True).agg(
        pl.col("index", "finish", "total_gap", "total_duration").first().name.prefix("s_"),
    )
    decode = decode.join(at_start, on=["engine", "life", "request_id"]).with_columns(
        pl.coalesce(f"f_{name}", f"s_{name}").alias(f"f_{name}")
        for name in ("index", "finish", "total_gap", "total_duration")
    )
    rows = decode.filter(pl.col("index") > pl.col("f_index")).group_by("engine", "life", "request_id").agg(
        intervals=pl.len().cast(pl.Int64),
        first_end=pl.col("f_finish").first(),
        last_end=pl.col("finish").last(),
        execution=pl.col("execution").sum(),
        connector=pl.col("connector").sum(),
        own=pl.col("duration").sum(),
        gap=pl.col("total_gap").last() - pl.col("f_total_gap").first(),
        whole=pl.col("total_duration").last() - pl.col("f_total_duration").first(),
        batch_mean=pl.col("decoding").mean(),
        **{name: pl.col(name).sum() for name in CONNECTOR_PARTS},
    )  # fmt: skip
    per = pl.col("intervals")
    return rows.with_columns(preemption=pl.col("whole") - pl.col("own")).select(
        "engine", "life", "request_id", "intervals", "first_end", "last_end", "batch_mean",
        tpot_ns=(pl.col("last_end") - pl.col("first_end")) / per,
        **{f"{name}_ns": pl.col(name) / per for name in (*PARTS, *CONNECTOR_PARTS)},
    ).sort("engine", "first_end")  # fmt: skip


def bucket_batches(steps: pl.DataFrame) -> pl.DataFrame:
    """Summarize the steps in which somebody decoded by engine and number of decoding requests (ns per step)."""
    size = pl.lit(f">{BATCH_EDGES[-1]}")
    for low, high in reversed(list(zip((0, *BATCH_EDGES), BATCH_EDGES, strict=False))):
        name = str(high) if high - low == 1 else f"{low + 1}-{high}"
        size = pl.when(pl.col("decoding") <= high).then(pl.lit(name)).otherwise(size)
    return (
        steps.filter(pl.col("decoding") > 0)
        .with_columns(bucket=size)
        .group_by("engine", "bucket")
        .agg(
            steps=pl.len(),
            tokens=pl.col("decoding").sum(),
            order=pl.col("decoding").min(),
            **{f"{name}_ns": pl.col(name).mean() for name in ("execution", "connector", "gap", *CONNECTOR_PARTS)},
            with_prompt=(pl.col("prompt_tokens") > 0).sum(),
        )
        .sort("engine", "order")
        .drop("order")
    )


def find_long_gaps(steps: pl.DataFrame, bound_ns: float | None = None) -> tuple[pl.DataFrame, float]:
    """Find the inter-token gaps above a bound, with their cause.

    steps: rows of prepare_steps.
    bound_ns: what is long; BOUND_FACTOR times the median gap when None.
    Returns (rows of engine, cause, gaps, excess_ns (sum over gaps of the time above the median)) and the bound; the row
    with cause "" counts the gaps that are not long. Each request that decodes in a step has one gap there.
    """
    period = steps.filter(pl.col("decoding") > 0).with_columns(period=pl.col("duration") + pl.col("gap"))
    if period.is_empty():
        return pl.DataFrame(
            schema={"engine": pl.String, "cause": pl.String, "gaps": pl.Int64, "excess_ns": pl.Float64}
        ), 0.0
    usual = {name: float(period[name].median() or 0.0) for name in ("execution", "gap", *CONNECTOR_PARTS, "period")}  # type: ignore[arg-type]
    bound = BOUND_FACTOR * usual["period"] if bound_ns is None else bound_ns
    names = {
        "submit": "post",
        "poll": "poll",
        "save": "save",
        "build": "scheduler",
        "execution": "execution",
        "gap": "gap",
    }
    excess = {column: pl.col(column) - usual[column] for column in names}
    largest = pl.max_horizontal(excess.values())
    cause = pl.lit("execution")
    for column, name in names.items():
        cause = pl.when(excess[column] == largest).then(pl.lit(name)).otherwise(cause)
    cause = (
        pl.when((cause == "execution") & (pl.col("prompt_tokens") > 0)).then(pl.lit("prompt in batch")).otherwise(cause)
    )
    cause = (
        pl.when(cause.is_in(["execution", "gap"]) & (pl.col("preempted") > 0))
        .then(pl.lit("preemption"))
        .otherwise(cause)
    )
    long = pl.col("period") > bound
    rows = period.with_columns(cause=pl.when(long).then(cause).otherwise(pl.lit("")))
    return (
        rows.group_by("engine", "cause")
        .agg(
            gaps=pl.col("decoding").sum(),
            excess_ns=((pl.col("period") - usual["period"]) * pl.col("decoding")).sum().cast(pl.Float64),
        )
        .sort("engine", "gaps", descending=[False, True])
    ), bound
