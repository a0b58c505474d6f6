"""The segments of the TTFT budget in the order of the critical path, and the class of each (DESIGN.md)."""

from __future__ import annotations

CLASS_OF = {
    "route": "routing",
    "prefill_ingress": "frontend",
    "prefill_queue": "queue",
    "readback": "transfer",
    "prefill_compute": "compute",
    "handoff_dispatch": "coordination",
    "pairing": "coordination",
    "decode_admission": "queue",
    "registration": "coordination",
    "handshake": "coordination",
    "dispatch": "coordination",
    "post": "coordination",
    "wire": "transfer",
    "completion_lag": "coordination",
    "decode_queue": "queue",
    "first_decode": "compute",
    "delivery": "frontend",
}
SEGMENTS = tuple(CLASS_OF)
CLASSES = ("compute", "queue", "coordination", "transfer", "frontend", "routing")

# Only these overlap the prefill of a push, so only these can be hidden.
HIDDEN = ("pairing", "decode_admission", "registration", "handshake")

MEANING = {
    "route": "client request at router -> sent to the prefill engine",
    "prefill_ingress": "sent -> prefill scheduler has it",
    "prefill_queue": "-> first scheduled on the prefill engine, without the readback",
    "readback": "blocks allocated on the prefill engine -> told that an earlier turn's KV is here (bidirectional)",
    "prefill_compute": "-> prompt done",
    "handoff_dispatch": "prompt done -> decode scheduler has it (router round trip)",
    "pairing": "prompt done -> decode scheduler has it (push: the decode leg came late)",
    "decode_admission": "decode scheduler has it -> blocks allocated",
    "registration": "decode blocks allocated -> prefill engine knows them (push)",
    "handshake": "first contact of the two engines",
    "dispatch": "both sides ready -> post begins",
    "post": "the NIXL submission call",
    "wire": "post returned -> bytes landed",
    "completion_lag": "landed -> decode scheduler told",
    "decode_queue": "told -> first decode step scheduled",
    "first_decode": "-> first token out of the decode engine",
    "delivery": "-> first byte at the client",
}

# What a readback consists of, on the prefill engine's own worker; the same steps as those of a hand-over.
READBACK_PARTS = {
    "handshake": "coordination",
    "dispatch": "coordination",
    "post": "coordination",
    "wire": "transfer",
    "completion_lag": "coordination",
}
UNRESOLVED = "unresolved"
"""Part of a readback that no worker span tells apart (a failed fetch has no transfer)."""

# Classes of everything that a waterfall shows as a bar.
CLASS_OF_BAR = CLASS_OF | {f"readback {part}": kind for part, kind in READBACK_PARTS.items()}
BARS = tuple(CLASS_OF_BAR)

# Milestone that ends each segment; pull walks one chain, push joins two branches at `ready`.
PREFILL_CHAIN = (
    ("route", "r_prefill_start"),
    ("prefill_ingress", "p_start"),
    ("prefill_queue", "p_sched"),
    ("prefill_compute", "p_end"),
)
PULL_MEETING = (("handoff_dispatch", "d_start"), ("decode_admission", "d_alloc"))
PUSH_MEETING = (("meeting", "ready"),)
HANDOVER_CHAIN = (
    ("dispatch", "post_start"),
    ("post", "post_end"),
    ("wire", "landed"),
    ("completion_lag", "d_told"),
    ("decode_queue", "d_sched"),
    ("first_decode", "d_first"),
    ("delivery", "ttft_end"),
)
PULL_CHAIN = PREFILL_CHAIN + PULL_MEETING + HANDOVER_CHAIN
PUSH_CHAIN = PREFILL_CHAIN + PUSH_MEETING + HANDOVER_CHAIN
