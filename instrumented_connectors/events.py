"""Codes of the recorded events and the shape of their tuples.

Every event is a tuple whose first two items are (code, perf_counter_ns). What follows is listed beside the code. Events
hold references that the engine does not change later; everything else is copied when it is recorded.
"""

from __future__ import annotations

from typing import Any

Event = tuple[Any, ...]

# Scheduler side.
ARRIVE = 1  # request_id, prompt_tokens, is_prefill, is_decode, peer_engine_id, peer_request_id, trace context | None
MATCH = 2  # request_id, local_tokens, external_tokens | None (None: ask again later)
ALLOC = 3  # request_id, external_tokens, blocks
# {request_id: tokens}, [NewRequestData], number of the step, when the metadata of the step before was built | 0,
# number of preempted requests, their ids, (ids of running requests, resumed ones, new blocks of each) | None
STEP = 4
STEP_END = 5  # when the metadata of the last step begun was built
TOLD = 6  # received ids, sent ids, failed ids
FINISH = 7  # request_id, status, computed_tokens, output_tokens, blocks, held
KEEP = 8  # request_id: the other side says that this request is worth keeping
FACTS = 9  # [{request_id: what a worker says of it}], see metrics.facts

# request_id, is_prefill, values of offers.FIELDS, D's digest of what it holds | None, the prompt's tokens | None: they
# are compared with the digest in this process and go no further
OFFER = 11
# [{engine_id: (its monotonic clock less ours in ns | None, its KV-cache blocks | None)}], from this engine's workers
PEERS = 12

PROMPT = 13  # request_id, the prompt's tokens: they are hashed in this process and go no further

VERDICTS = 10  # {request_id: why it is kept | None: dropped}, the scheduler's verdicts for its workers

# Worker side.
# [(request_id, peer_engine_id, peer_request_id, whether KV is awaited: else only a message goes out)],
# [request_id with finished blocks], {request_id: context} | None, whether requests take their trace from the peer's
LOAD = 20
RESULTS = 21  # received ids, sent ids, failed ids
PREP = 22  # end_ns, handle, operation, descriptors, notification | None, current request | None, thread, ok
POSTED = 23  # end_ns, handle, thread, ok
DONE = 24  # handle, last_pending_ns | 0, polls, state, thread of the last poll
TELEMETRY = 25  # handle, post_us, xfer_us, bytes, descriptors
NOTIFIED = 26  # [message], thread
SENT = 27  # end_ns, message, thread, ok
HANDSHAKE = 28  # end_ns, peer_engine_id, reason ("" when it worked), notif_only
FAILURE = 29  # failure_type, request_id | None, error class | "", peer_engine_id | None
# request_id | None, peer_engine_id, its monotonic clock less ours in seconds | None, its blocks | None, whether the
# blocks to read have expired
READ_CHECK = 31
# (number of the step, tokens, requests, preempted requests) | None, metadata bound, load begins, load returned (0: not
# called), ns in wait_for_save, poll begins, thread
WORKER_STEP = 30
