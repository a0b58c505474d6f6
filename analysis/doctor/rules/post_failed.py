"""P could not post its write; D waits and hangs (push).

D learns of a push only by the notification that follows the bytes. When the post fails nobody tells it, and its
watchdog (`push_registration_timeout`, 480 s) only drops the registration.

Finding: one failed post of a write is enough. The evidence names D's request and how long it had been waiting.

Remedy: the cause of the failed post; time-outs at the client.
"""

from __future__ import annotations

import polars as pl

from ..facts import Facts
from ..finding import ERROR, Finding, Rule


def check(facts: Facts) -> Finding | None:
    """Writes that were never posted."""
    posts = facts.spans("post").filter(pl.col("direction") == "WRITE")
    failed = posts.filter(pl.col("outcome") == "error").unique("id", maintain_order=True)
    if failed.is_empty():
        return None
    until = pl.coalesce("d_end", pl.lit(facts.evidence["finish"].max()))
    waiting = facts.requests.select("d_id", "d_alloc", "d_end", "d_told")
    shown = failed.join(waiting, left_on="peer_id", right_on="d_id", how="left").with_columns(
        request=pl.col("key"), decode_request=pl.col("peer_id"),
        decode_waited_ns=pl.when(pl.col("d_told").is_null()).then(until - pl.col("d_alloc")),
    )  # fmt: skip
    return RULE.find(
        f"{failed.height} writes could not be posted: decode waits for them without end",
        shown,
        posts.n_unique("id"),
        columns=("request", "decode_request", "decode_waited_ns", "peer"),
    )


RULE = Rule(
    "post-failed",
    ERROR,
    "look at the prefill engine's log for the NIXL error and at the handshake with that decode engine; "
    "let clients time out and retry, decode is never told",
    check,
    cases=(6,),
)
