"""Milestones -> conserved TTFT budgets: columnar expressions only, no loop over requests, no I/O.

Segments follow the critical path and are disjoint: segments + residual = TTFT for every request. A segment is charged
only when both of its ends were seen; time between milestones that nobody saw (a stock peer, a lost span) stays in the
residual. Milestones out of order (clock error) are moved forward to the one before, the least that makes the path
possible, and the largest move is kept in `disorder`.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from .handshakes import measure_handshakes
from .reuse.readback import charge_readback
from .segments import HIDDEN, PULL_CHAIN, PUSH_CHAIN, READBACK_PARTS, SEGMENTS, UNRESOLVED

Chain = Sequence[tuple[str, str]]

NS_PER_MS = 1_000_000

NEEDED = (
    "row", "ttft_start", "ttft_end", "r_prefill_start", "p_start", "p_sched", "p_end", "reg_seen", "d_start", "d_alloc",
    "post_start", "post_end", "landed", "d_told", "d_sched", "d_first", "d_end", "waited", "output_tokens",
    "uncertainty_ns", "p_alloc", "p_told", "p_post_start", "p_post_end", "p_landed", "tried_start",
    "mode", "ttft_source", "p_engine", "d_engine", "x_engine", "x_peer", "x_rank", "rb_peer", "rb_rank",
)  # fmt: skip
"""Columns that a budget is made of."""


def build_budgets(milestones: pl.DataFrame, handshakes: pl.DataFrame) -> pl.DataFrame:
    """Build the budget of every request that got a first token.

    milestones: rows of sql/milestones.sql with their landing estimated (landing.py) and their readbacks
    (reuse/readback.py).
    handshakes: rows of sql/handshakes.sql.
    Returns the milestones with ttft, residual, uncertainty_ns, disorder, seg_<segment>, hid_<segment> and rbk_<part of
    the readback>, all Int64 ns (NULL where a segment could not be told apart), and ttft_source.
    """
    frame = choose_ends(milestones)
    frame = frame.filter(pl.col("ttft_end").is_not_null(), pl.col("ttft_start").is_not_null())
    is_push = pl.col("mode") == "push"
    # Rows are taken apart by mode and put together again: only with what a budget is made of.
    needed = frame.select(name for name in NEEDED if name in frame.columns)
    parts = [_charge_pull(needed.filter(~is_push), handshakes), _charge_push(needed.filter(is_push), handshakes)]
    charged = finish(pl.concat(parts, how="diagonal")).sort("row")
    return pl.concat([frame.drop(charged.columns, strict=False), charged], how="horizontal")


def choose_ends(milestones: pl.DataFrame) -> pl.DataFrame:
    """Add row, ttft_source, ttft_start and ttft_end (ns).

    The router's view is taken when it saw the first byte: from the client's send stamp, else the request's arrival.
    Otherwise the engines': from the earliest arrival on either engine to the end of D's first step.
    """
    has_router = pl.col("r_start").is_not_null() & pl.col("r_first_byte").is_not_null()
    sent = pl.coalesce("r_client_sent", "r_start")
    arrived = pl.min_horizontal("p_start", "d_start")
    return milestones.with_row_index("row").with_columns(
        ttft_source=pl.when(has_router).then(pl.lit("router")).otherwise(pl.lit("engine")),
        ttft_start=pl.when(has_router).then(sent).otherwise(arrived),
        ttft_end=pl.when(has_router).then(pl.col("r_first_byte")).otherwise(pl.col("d_first")),
    )


def _charge_pull(frame: pl.DataFrame, handshakes: pl.DataFrame) -> pl.DataFrame:
    ordered = charge_readback(_charge_chain(_start_chain(frame), PULL_CHAIN), handshakes)
    return _split_dispatch(ordered, handshakes, begins="at_d_alloc")


def _charge_push(frame: pl.DataFrame, handshakes: pl.DataFrame) -> pl.DataFrame:
    """Charge P's branch up to `ready`, the later of prompt done and registration seen, then the hand-over."""
    frame = _leave_prefill_aside(_start_chain(frame)).with_columns(ready=_both(pl.col("p_end"), pl.col("reg_seen")))
    ordered = _charge_chain(frame, PUSH_CHAIN)
    return _split_meeting(_split_dispatch(ordered, handshakes, begins="at_ready"), handshakes)


def _start_chain(frame: pl.DataFrame) -> pl.DataFrame:
    """Without a router the first engine arrival stands for the moment of sending."""
    engine = pl.col("ttft_source") == "engine"
    return frame.with_columns(
        r_prefill_start=pl.when(engine).then(pl.col("ttft_start")).otherwise(pl.col("r_prefill_start"))
    )


def _leave_prefill_aside(frame: pl.DataFrame) -> pl.DataFrame:
    """A push request whose D computed the prompt itself did not wait for P: P is off its critical path."""
    local = pl.col("d_told").is_not_null() & ~pl.col("waited").fill_null(value=True) & pl.col("post_start").is_null()
    names = ("r_prefill_start", "p_start", "p_sched", "p_end")
    return frame.with_columns(pl.when(~local).then(pl.col(name)).alias(name) for name in names)


def _charge_chain(frame: pl.DataFrame, chain: Chain) -> pl.DataFrame:
    """Walk the chain: at_<milestone> is its repaired time, seg_<segment> the time since the milestone before."""
    reached, before, moved = pl.col("ttft_start"), pl.col("ttft_start"), []
    frame = frame.with_columns(ttft=pl.col("ttft_end") - pl.col("ttft_start"))
    for segment, milestone in chain:
        raw = pl.col(milestone)
        at = pl.when(raw.is_not_null()).then(pl.max_horizontal(pl.min_horizontal(raw, "ttft_end"), reached))
        frame = frame.with_columns(at.alias(f"at_{milestone}"), (at - before).alias(f"seg_{segment}"))
        moved.append((pl.col(f"at_{milestone}") - raw).abs())
        before = pl.col(f"at_{milestone}")
        frame = frame.with_columns(pl.max_horizontal(reached, before).alias("reached"))
        reached = pl.col("reached")
    return frame.with_columns(disorder=pl.max_horizontal(moved).fill_null(0)).drop("reached")


def _split_dispatch(frame: pl.DataFrame, handshakes: pl.DataFrame, *, begins: str) -> pl.DataFrame:
    """Take the handshakes with the peer out of the time before the post."""
    sides = ("x_engine", "x_peer", "x_rank")
    shaken = measure_handshakes(frame, handshakes, sides, pl.col(begins), pl.col("at_post_start"))
    return frame.with_columns(seg_handshake=shaken).with_columns(
        seg_dispatch=pl.col("seg_dispatch") - pl.col("seg_handshake"),
        seg_handshake=pl.when(pl.col("seg_dispatch").is_not_null()).then(pl.col("seg_handshake")),
    )


def _split_meeting(frame: pl.DataFrame, handshakes: pl.DataFrame) -> pl.DataFrame:
    """Charge the time from P ready to registration seen by what D did then; the rest of D's branch is hidden.

    Before D's scheduler had the request: pairing. Until it had blocks: decode_admission. Until P saw the registration:
    handshake, as far as D was shaking hands with P, else registration. If P came last, D's wait is hidden pairing.
    """
    seen = pl.col("reg_seen")
    start, alloc = pl.min_horizontal("d_start", seen), pl.min_horizontal("d_alloc", seen)
    frame = frame.with_columns(b_start=_known(pl.col("d_start"), start)).with_columns(
        b_alloc=_known(pl.col("d_alloc"), pl.max_horizontal(alloc, "b_start"))
    )
    late = pl.max_horizontal(
        (pl.col("b_start") - pl.col("d_start")).abs(), (pl.col("b_alloc") - pl.col("d_alloc")).abs()
    )
    low, high = pl.col("at_p_end"), pl.col("at_ready")
    sides = ("d_engine", "p_engine", "x_rank")
    shaken_all = measure_handshakes(frame, handshakes, sides, pl.col("b_alloc"), seen)
    shaken = measure_handshakes(frame, handshakes, sides, pl.max_horizontal("b_alloc", low), high)
    frame = frame.with_columns(
        shaken_all=shaken_all, shaken=pl.when(_overlap(pl.col("b_alloc"), seen, low, high).is_not_null()).then(shaken),
        seg_pairing=_overlap(low, pl.col("b_start"), low, high),
        seg_decode_admission=_overlap(pl.col("b_start"), pl.col("b_alloc"), low, high),
        both_registration=_overlap(pl.col("b_alloc"), seen, low, high),
    )  # fmt: skip
    full_admission = pl.col("b_alloc") - pl.col("b_start")
    full_registration = seen - pl.col("b_alloc") - pl.col("shaken_all")
    frame = frame.with_columns(
        seg_registration=pl.col("both_registration") - pl.col("shaken"),
        seg_handshake=pl.when(pl.col("seg_handshake").is_not_null() | pl.col("shaken").is_not_null()).then(
            pl.sum_horizontal("seg_handshake", "shaken")
        ),
        disorder=pl.max_horizontal("disorder", late.fill_null(0)),
    )
    return frame.with_columns(
        late_side=pl.when(low >= seen).then(pl.lit("prefill")).when(low < seen).then(pl.lit("decode")),
        hid_pairing=(low - seen).clip(lower_bound=0),
        hid_decode_admission=(full_admission - pl.col("seg_decode_admission")).clip(lower_bound=0),
        hid_registration=(full_registration - pl.col("seg_registration")).clip(lower_bound=0),
        hid_handshake=(pl.col("shaken_all") - pl.col("shaken")).clip(lower_bound=0),
    )


def finish(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the residual and the columns of segments that no request of this run has."""
    if "late_side" not in frame.columns:
        frame = frame.with_columns(late_side=pl.lit(None, pl.String))
    absent = [f"seg_{name}" for name in SEGMENTS] + [f"hid_{name}" for name in HIDDEN]
    absent += [f"rbk_{part}" for part in (*READBACK_PARTS, UNRESOLVED)]
    frame = frame.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent if name not in frame.columns)
    # Without a router there is no route, and arrival at P is ingress only where D was reached first (push).
    engine = pl.col("ttft_source") == "engine"
    nothing = engine & (pl.col("seg_prefill_ingress") == 0)
    frame = frame.with_columns(
        seg_route=pl.when(~engine).then(pl.col("seg_route")),
        seg_prefill_ingress=pl.when(~nothing).then(pl.col("seg_prefill_ingress")),
        seg_delivery=pl.when(~engine).then(pl.col("seg_delivery")),
    )
    charged = pl.sum_horizontal(f"seg_{name}" for name in SEGMENTS)
    steps = pl.col("output_tokens") - 1
    return frame.with_columns(
        residual=pl.col("ttft") - charged,
        uncertainty_ns=pl.col("uncertainty_ns").fill_null(0),
        tpot_ns=pl.when(steps > 0).then((pl.col("d_end") - pl.col("d_first")) / steps),
    )


def _overlap(a: pl.Expr, b: pl.Expr, low: pl.Expr, high: pl.Expr) -> pl.Expr:
    """Length of [a, b] inside [low, high]; NULL when an end is unknown."""
    inside = (pl.min_horizontal(b, high) - pl.max_horizontal(a, low)).clip(lower_bound=0)
    known = a.is_not_null() & b.is_not_null() & low.is_not_null() & high.is_not_null()
    return pl.when(known).then(inside)


def _both(a: pl.Expr, b: pl.Expr) -> pl.Expr:
    """The later of two; NULL when one is unknown."""
    return pl.when(a.is_not_null() & b.is_not_null()).then(pl.max_horizontal(a, b))


def _known(test: pl.Expr, value: pl.Expr) -> pl.Expr:
    return pl.when(test.is_not_null()).then(value)
