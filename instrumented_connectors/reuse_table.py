"""The catalogue's entries of kept and re-used blocks: decisions, what was wrong with an offer, leases."""

from __future__ import annotations

from collections.abc import Mapping

from . import decide, offers
from .span_table import BLOCKS, P_SCHEDULER, PROMPT_TOKENS, Attribute, Span

DECISION, VALIDATION, LEASE = "decision", "validation", "lease"

FINISHED_AWAITING_TRANSFER, AWAITING_NEXT_TURN = "finished_awaiting_transfer", "awaiting_next_turn"
RESERVED_AWAITING_WRITE, RESERVED_AWAITING_READ = "reserved_awaiting_write", "reserved_awaiting_read"
ABORTED_AWAITING_RECEIVE = "aborted_awaiting_receive"
RESERVED = (RESERVED_AWAITING_WRITE, RESERVED_AWAITING_READ)
LEASE_REASONS: Mapping[str, str] = {
    FINISHED_AWAITING_TRANSFER: "P, until D has read the blocks or they were sent",
    AWAITING_NEXT_TURN: "D in bidirectional, for a next turn to read back",
    RESERVED_AWAITING_WRITE: "D in push, from the allocation until P has written: the price of committing early",
    RESERVED_AWAITING_READ: "D in pull, and P that reads back: from the allocation until the KV is here",
    ABORTED_AWAITING_RECEIVE: "the request ended while its KV was still to come",
}


def _list(meanings: Mapping[str, str]) -> str:
    return "; ".join(f"{name} ({meaning})" for name, meaning in meanings.items())


def _estimate(name: str, doc: str) -> tuple[Attribute, ...]:
    return (
        Attribute(f"{name}_estimate_ns", "ns", f"{doc}; absent with fewer than 3 measurements"),
        Attribute(f"{name}_estimate_low_ns", "ns", "the same by the 10 % of measurements that were fastest"),
        Attribute(f"{name}_estimate_high_ns", "ns", "the same by the 10 % that were slowest"),
        Attribute(f"{name}_samples", "", "measurements behind the estimate (64 at most)"),
    )


SPANS: tuple[Span, ...] = (
    Span(
        DECISION, P_SCHEDULER, "the scheduler has the request", "blocks allocated: the decision is final",
        "Bidirectional, once per request on P: whether it reads an earlier turn's blocks back from D or computes them, "
        "on what grounds, and what came of it. Emitted when the prompt is done, or with what is known when the request "
        "or the engine ends before.",
        (Attribute("decision", "", "fetch (also one that failed), recompute, local or none"),
         Attribute("reason", "", _list(decide.REASONS)), PROMPT_TOKENS,
         Attribute("remote_tokens", "tokens", "tokens that D says it holds"),
         Attribute("local_tokens", "tokens", "prompt tokens in P's own prefix cache"),
         Attribute("fetch_tokens", "tokens", "tokens that a fetch saves: min(remote, prompt) - local"),
         Attribute("threshold", "tokens", "P's `kv_recompute_threshold`"),
         Attribute("seconds_to_expiry", "s", "until D's blocks expire, from the allocation on, on P's clock (its "
                   "worker measures the difference at the handshake); negative: past; absent while unknown"),
         Attribute("peer_engine_id", "", "D that holds the blocks"),
         Attribute("peer_request_id", "", "D's request of the earlier turn: links the turns of a conversation"),
         Attribute("prefix_match", "", "whether the prompt begins with what D holds: yes, no (a fetch brings wrong KV) "
                   "or unknown (no digest, or one of another key)"),
         Attribute("prefix_mismatch_block", "", "only with no: the first block that differs, 0-based"),
         Attribute("prefix_blocks", "blocks", "full blocks compared (a shorter rest is compared too)"),
         *_estimate("fetch", "what fetching so many tokens takes, from this engine's own recent fetches"),
         *_estimate("recompute", "what so many tokens add to a prefill, from this engine's own recent prefills"),
         Attribute("fetch_ns", "ns", "what the fetch took, blocks allocated to told (also a failed one)"),
         Attribute("recompute_ns", "ns", "share of the measured prefill time for the tokens that a fetch saves; only "
                   "if they were computed"),
         Attribute("regret_ns", "ns", "what the chosen way cost less the estimate of the other one; above 0: the other "
                   "would have been faster; absent without the estimate")),
    ),
    Span(
        VALIDATION, "scheduler", "noticed", "the same",
        "Something is wrong with a request's transfer parameters. vLLM does what it does without kvlens.",
        (Attribute("reason", "", _list(offers.REASONS)), Attribute("field", "", "name of the bad parameter")),
    ),
    Span(
        LEASE, "scheduler", "blocks taken for this reason", "released, or taken for another",
        "Blocks that a request holds without computing on them. With `block_ns` of `prefill` and `decode` these are "
        "all blocks that the engine's cache has given out.",
        (Attribute("reason", "", _list(LEASE_REASONS)), BLOCKS,
         Attribute("bytes", "By", "of these blocks in all layers and ranks; absent when unknown"),
         Attribute("ttl_ns", "ns", "how long they are kept without a heartbeat; absent where nothing limits it"),
         Attribute("outcome", "", "read, sent, received, expired, aborted (goes on as aborted_awaiting_receive), "
                   "released (end seen, cause not; or the receive failed) or unknown (engine shut down)"),
         Attribute("heartbeats", "", "P: lease extensions received"),
         Attribute("last_heartbeat_ns", "ns", "P: Unix time of the last one")),
    ),
)  # fmt: skip
