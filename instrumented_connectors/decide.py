"""What P's scheduler decided about an offer, and why. Pure: the stock connector's rules on recorded inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from .estimates import Estimate
from .offers import Offer
from .request_state import RequestState

if TYPE_CHECKING:
    from .spans import Attributes

FETCH, RECOMPUTE, LOCAL, NONE = "fetch", "recompute", "local", "none"

FETCHED, BELOW_THRESHOLD, LOCAL_COVERS = "fetched", "below_threshold", "local_cache_covers"
NO_METADATA, INCOMPLETE, NOTHING = "no_remote_metadata", "incomplete_metadata", "nothing_to_fetch"
EXPIRED, UNKNOWN_REMOTE, FAILED_RECOMPUTED = "expired", "remote_unknown", "fetch_failed_recomputed"
FAILED, ABORTED, DISABLED = "fetch_failed", "aborted", "disabled"

REASONS: Mapping[str, str] = {
    FETCHED: "fetch: the blocks were read from D",
    BELOW_THRESHOLD: "recompute: a fetch would have saved fewer tokens than `kv_recompute_threshold`",
    LOCAL_COVERS: "local: P's own prefix cache holds as much as D offers",
    NO_METADATA: "none: no blocks were offered (a first turn, or a router that lost them)",
    INCOMPLETE: "none: blocks were offered, but not all that a read needs",
    NOTHING: "none: D offers blocks without tokens that P lacks",
    EXPIRED: "fetch: declined by P's worker, D's blocks had expired or were about to",
    UNKNOWN_REMOTE: "fetch: no handshake with D, or its NIXL state is gone",
    FAILED_RECOMPUTED: "fetch: the transfer failed and P computed the tokens",
    FAILED: "fetch: the transfer failed and so did the request (`kv_load_failure_policy`: fail)",
    ABORTED: "the request ended before the blocks were there",
    DISABLED: "none: blocks were offered, but P's `bidirectional_kv_xfer` (or the request) rules a fetch out",
}

# The stock worker declines a read whose blocks expire within 5 s; the wait for the worker comes on top.
_EXPIRY_MARGIN_S = 6.0


class Decision(NamedTuple):
    """What was decided, why, and how many tokens a fetch saves."""

    decision: str
    reason: str
    fetch_tokens: int | None


@dataclass(frozen=True)
class Policy:
    """The engine's rules: whether it reads back at all, and from how many tokens on."""

    is_on: bool
    threshold: int


def decide(offer: Offer, state: RequestState, policy: Policy) -> Decision:
    """Return the decision of an allocated request, as the stock scheduler made it."""
    if not offer.has_blocks:
        return Decision(NONE, NO_METADATA, None)
    candidate = None if offer.tokens is None else min(offer.tokens, state.prompt_tokens)
    saved = None if candidate is None else max(0, candidate - state.local_tokens)
    if not policy.is_on:
        return Decision(NONE, DISABLED, saved)
    if state.external_tokens > 0:
        return Decision(FETCH, FETCHED, state.external_tokens)
    if not offer.is_complete or candidate is None or saved is None:
        return Decision(NONE, INCOMPLETE, saved)
    if saved == 0:
        covered = candidate > 0 and state.local_tokens > 0
        return Decision(LOCAL, LOCAL_COVERS, 0) if covered else Decision(NONE, NOTHING, 0)
    # A request that skips the prefix cache (prompt logprobs) gets nothing from outside either.
    is_small = 0 < saved < policy.threshold
    return Decision(RECOMPUTE, BELOW_THRESHOLD, saved) if is_small else Decision(NONE, DISABLED, saved)


def name_failure(state: RequestState, why: str, seconds_left: float | None) -> str:
    """Return why a fetch brought nothing.

    Args:
        state: the request.
        why: what the worker said (expired, remote_unknown, foreign_engine, failed), "" for nothing.
        seconds_left: until the blocks expired, when they were asked for; None when unknown.
    """
    if why == EXPIRED or (not why and seconds_left is not None and seconds_left <= _EXPIRY_MARGIN_S):
        return EXPIRED
    if why in {UNKNOWN_REMOTE, "foreign_engine"}:
        return UNKNOWN_REMOTE
    return FAILED if state.finish is not None and state.finish[1] == "finished_error" else FAILED_RECOMPUTED


def weigh(decision: Decision, state: RequestState, fetch: Estimate | None, recompute: Estimate | None) -> Attributes:
    """Return what the chosen way cost and how much less the other one is estimated to cost (ns)."""
    fetch_ns = recompute_ns = regret = None
    if state.allocated is not None and state.told is not None and state.external_tokens > 0:
        fetch_ns = state.told - state.allocated
    was_computed = decision.decision == RECOMPUTE or state.failed
    if was_computed and state.scheduled is not None and state.finish is not None and decision.fetch_tokens:
        share = min(1.0, decision.fetch_tokens / max(1, state.computed))
        recompute_ns = round(share * (state.finish[0] - state.scheduled))
    is_whole = recompute_ns is not None or not state.failed  # else neither way brought the tokens
    if fetch_ns is not None and recompute is not None and is_whole and decision.reason != ABORTED:
        regret = fetch_ns + (recompute_ns or 0) - recompute.ns
    elif fetch_ns is None and recompute_ns is not None and fetch is not None:
        regret = recompute_ns - fetch.ns
    return {"fetch_ns": fetch_ns, "recompute_ns": recompute_ns, "regret_ns": regret}


def describe_estimates(fetch: Estimate | None, recompute: Estimate | None) -> Attributes:
    """Return both estimates as attributes."""
    attributes: dict[str, int | None] = {}
    for name, estimate in (("fetch", fetch), ("recompute", recompute)):
        if estimate is not None:
            attributes |= {
                f"{name}_estimate_ns": estimate.ns, f"{name}_estimate_low_ns": estimate.low_ns,
                f"{name}_estimate_high_ns": estimate.high_ns, f"{name}_samples": estimate.samples,
            }  # fmt: skip
    return attributes
