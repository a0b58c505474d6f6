"""The one table of spans: names, where they start and end, their attributes and units.

The assembler takes its names from here, `docs/spans.md` is generated from here, the analysis reads them by these names.
"""

from __future__ import annotations

from . import reuse_table, span_table
from .span_table import (
    BLOCKS,
    BYTES,
    D_SCHEDULER,
    DESCRIPTORS,
    DIRECTION,
    FINISH_REASON,
    OUTCOME,
    P_SCHEDULER,
    PEER_ENGINE,
    PEER_REQUEST,
    PROMPT_TOKENS,
    RANK,
    ROUTER,
    THREAD,
    WORKER,
    Attribute,
    Span,
)  # fmt: skip

SCHEMA = "1"
"""Version of the span schema. 1: first release."""

SCOPE = "kvlens"
PREFIX = "kv_transfer."

PREFILL = "prefill"
PREFILL_QUEUE = "prefill.queue"
PREFILL_COMPUTE = "prefill.compute"
PREFILL_REMOTE_WAIT = "prefill.remote_wait"
DECODE = "decode"
DECODE_ADMISSION = "decode.admission"
DECODE_REMOTE_WAIT = "decode.remote_wait"
DECODE_QUEUE = "decode.queue"
DECODE_FIRST_STEP = "decode.first_step"
HANDSHAKE = "handshake"
REGISTRATION_SEND = "registration.send"
PAIRING = "pairing"
POST = "post"
WIRE = "wire"
NOTIFICATION = "notification"
COMPLETION = "completion"
FAILURE = "failure"
ROUTER_REQUEST = "router.request"
ROUTER_PREFILL = "router.prefill"
ROUTER_DECODE = "router.decode"
STEP_BATCH = "step.batch"
STEP_SLOW = "step.slow"
THREADS_SAMPLE = "threads.sample"
DECISION, VALIDATION, LEASE = reuse_table.DECISION, reuse_table.VALIDATION, reuse_table.LEASE

COMMON, KEPT = span_table.COMMON, span_table.KEPT

PROCESS_SPANS = frozenset({STEP_BATCH, STEP_SLOW, THREADS_SAMPLE})
"""Spans of a process rather than of a request: no sampler decides on them."""


_USAGE = (
    Attribute("block_ns", "ns", "blocks x nanoseconds while the request ran; what `lease` spans cover is not in it"),
    Attribute("blocks_peak", "blocks", "most blocks at a time"),
    Attribute("blocks_kept", "blocks", "kept when it ended: a `lease` span follows, unless the engine dies before"),
    Attribute("block_size", "tokens", "tokens per block"),
)

SPANS: tuple[Span, ...] = (
    Span(
        PREFILL, P_SCHEDULER, "the scheduler has the request", "prompt done", "A request on the prefill engine.",
        (PROMPT_TOKENS, Attribute("cached_tokens", "tokens", "prompt tokens found in the local prefix cache"),
         Attribute("computed_tokens", "tokens", "prompt tokens computed here"),
         Attribute("chunks", "", "scheduler steps that computed the prompt"), BLOCKS, FINISH_REASON, *_USAGE),
    ),
    Span(PREFILL_QUEUE, P_SCHEDULER, "the scheduler has the request", "first scheduled",
         "Wait for the first step; contains `prefill.remote_wait` where there is one."),
    Span(
        PREFILL_REMOTE_WAIT, P_SCHEDULER, "blocks allocated", "the scheduler is told that D's blocks are here",
        "Bidirectional: P reads an earlier turn's blocks back from D. The transfer itself are P's own `post`, `wire` "
        "and `completion` spans (direction READ) in the trace of P's request; their `peer_request_id` is D's request "
        "of the earlier turn.",
        (Attribute("outcome", "", "ok, failed, aborted (the request ended before that) or unknown (the engine did)"),
         BLOCKS, Attribute("external_tokens", "tokens", "tokens that the fetch brings")),
    ),
    Span(
        PREFILL_COMPUTE, P_SCHEDULER, "first scheduled", "prompt done", "Prompt computation, all chunks.",
        (Attribute("chunks", "", "scheduler steps that computed the prompt"),),
    ),
    *reuse_table.SPANS,
    Span(
        DECODE, D_SCHEDULER, "the scheduler has the request", "finished", "A request on the decode engine.",
        (PROMPT_TOKENS, Attribute("external_tokens", "tokens", "prompt tokens expected from the other side"),
         Attribute("local_tokens", "tokens", "prompt tokens found in the local prefix cache"),
         Attribute("output_tokens", "tokens", "tokens generated here"), FINISH_REASON, PEER_REQUEST, PEER_ENGINE,
         *_USAGE),
    ),
    Span(
        DECODE_ADMISSION, D_SCHEDULER, "the scheduler has the request", "blocks allocated", "Wait for admission.",
        (Attribute("attempts", "", "scheduler passes that considered the request"),),
    ),
    Span(
        DECODE_REMOTE_WAIT, D_SCHEDULER, "blocks allocated", "the scheduler is told that the KV is here",
        "The whole remote wait, as vLLM's queue time hides it.", (OUTCOME,),
    ),
    Span(DECODE_QUEUE, D_SCHEDULER, "KV is here", "first scheduled", "Wait for the first decode step."),
    Span(
        DECODE_FIRST_STEP, D_SCHEDULER, "first scheduled", "end of the step that gave the first token",
        "First step on the decode engine.", (Attribute("steps", "", "steps until the first token"),),
    ),
    Span(
        HANDSHAKE, WORKER, "handshake starts", "agents known or failed", "First contact of two engines.",
        (PEER_ENGINE, OUTCOME,
         Attribute("reason", "", "compatibility_hash_mismatch, engine_id_mismatch, timeout, decode_error or other"),
         Attribute("notif_only", "", "true when only notifications are set up"), RANK),
    ),
    Span(
        REGISTRATION_SEND, "decode worker (push)", "send begins", "send returned", "D offers its blocks to P.",
        (Attribute("bytes", "By", "size of the registration message"), THREAD, RANK),
    ),
    Span(
        PAIRING, "prefill worker (push)", "first side ready", "both sides ready (or dropped)",
        "Finished prompt meets D's registration.",
        (Attribute("late_side", "", "prefill or decode: who came second"),
         Attribute("late_ns", "ns", "how much later the second side was ready"),
         Attribute("registration_seen_ns", "ns", "Unix time at which P saw the registration"),
         Attribute("blocks_ready_ns", "ns", "Unix time at which P's worker had the finished blocks"),
         PEER_REQUEST, PEER_ENGINE, OUTCOME, RANK),
    ),
    Span(
        POST, "worker that posts", "make_prepped_xfer begins", "transfer() returned", "The NIXL submission itself.",
        (DIRECTION, DESCRIPTORS, BYTES, THREAD, Attribute("prep_ns", "ns", "share of make_prepped_xfer"), RANK,
         PEER_ENGINE, PEER_REQUEST, OUTCOME),
    ),
    Span(
        WIRE, "worker that posts", "post returned", "done first seen", "Bytes on their way, bounded by two polls.",
        (Attribute("landed_after_ns", "ns", "Unix time of the last poll that saw it in progress, or the post's end"),
         Attribute("landed_before_ns", "ns", "Unix time at which it was first seen done"),
         Attribute("nixl_xfer_us", "us", "NIXL's own transfer time (contains the polling delay)"),
         Attribute("nixl_post_us", "us", "NIXL's own post time"), BYTES, DESCRIPTORS,
         Attribute("polls", "", "polls made"), Attribute("poll_thread", "", "name of the thread that saw it done"),
         DIRECTION, RANK, PEER_ENGINE, PEER_REQUEST, OUTCOME),
    ),
    Span(NOTIFICATION, WORKER, "completion notification seen", "the same", "The other side says it is done.",
         (RANK, THREAD)),
    Span(COMPLETION, WORKER, "done or notification seen", "reported to the scheduler", "Worker-side completion lag.",
         (RANK, OUTCOME,
          Attribute("reason", "", "only if failed: expired, remote_unknown, foreign_engine or failed"))),
    Span(FAILURE, "any", "failure", "the same", "One failure, as vLLM's own failure funnel reports it.",
         (Attribute("failure_type", "", "vLLM's name of the failure"),
          Attribute("error_type", "", "class of the exception"), PEER_ENGINE)),
    Span(
        ROUTER_REQUEST, ROUTER, "request received", "last byte sent", "A request at the router.",
        (Attribute("mode", "", "push, pull or bidirectional"), Attribute("status", "", "ok or error"),
         Attribute("error", "", "what failed"), Attribute("streaming", "", "true for a streamed answer"),
         Attribute("client_sent_ns", "ns", "when the client sent it (X-Request-Start)"),
         Attribute("first_byte_ns", "ns", "first token written to the client"), PROMPT_TOKENS),
    ),
    Span(ROUTER_PREFILL, ROUTER, "sent to P", "P's answer complete", "Prefill leg.",
         (PEER_ENGINE, Attribute("status", "", "ok or error"))),
    Span(
        ROUTER_DECODE, ROUTER, "sent to D", "last byte from D", "Decode leg.",
        (PEER_ENGINE, Attribute("status", "", "ok or error"),
         Attribute("first_byte_ns", "ns", "first token received from D")),
    ),
    Span(
        STEP_BATCH, "engine, scheduler and workers", "first step begins", "last step ended",
        "Up to 256 engine steps, at most a second of them, as columns: whole numbers, one per row; a column of zeros "
        "is left out. Consecutive steps in which nothing was scheduled share a row. The two sides meet by the step's "
        "number, which the scheduler sends to its workers on the connector metadata. A batch is never sampled.",
        (Attribute("step_schema", "", "version of this record: 1"),
         Attribute("side", "", "scheduler or worker: whose rows these are"),
         RANK, Attribute("thread", "", "worker: name of the thread that runs the steps"),
         Attribute("rows", "", "length of the columns"),
         Attribute("first_step", "", "number of the first row's first step; the rows' numbers follow from `steps`"),
         Attribute("steps", "", "column: steps in the row (more than 1: idle steps, figures summed)"),
         Attribute("begin_ns", "ns", "column: begin, as the difference to the row before (first: to the span's start)"),
         Attribute("duration_ns", "ns", "column: begin to end. Scheduler: from the finished schedule to the processed "
                   "output. Worker: from the bound metadata to the polled transfers"),
         Attribute("prompt_tokens", "tokens", "column, scheduler: scheduled prompt tokens"),
         Attribute("decode_tokens", "tokens", "column, scheduler: scheduled tokens of requests that decode"),
         Attribute("requests", "", "column, scheduler: scheduled requests"),
         Attribute("preempted", "", "column, scheduler: requests that lost their blocks to this step"),
         Attribute("build_ns", "ns", "column, scheduler: connector time on the scheduler's thread (metadata)"),
         Attribute("submit_offset_ns", "ns", "column, worker: begin of the row to the begin of `start_load_kv`"),
         Attribute("submit_ns", "ns", "column, worker: `start_load_kv`, posts included"),
         Attribute("save_ns", "ns", "column, worker: `wait_for_save`"),
         Attribute("poll_ns", "ns", "column, worker: polls and notifications; they end with the row"),
         Attribute("request_ids", "", "scheduler: the batch's requests; runs name them by their place here"),
         Attribute("run_request", "", "column of runs: which request"),
         Attribute("run_kind", "", "column of runs: 0 computes its prompt (first token included), 1 decodes"),
         Attribute("run_first", "", "column of runs: first row of the run"),
         Attribute("run_rows", "", "column of runs: consecutive rows in which the request was scheduled")),
    ),
    Span(
        STEP_SLOW, WORKER, "the step before ended", "the step ended",
        "A step slower than twice the median (and 5 ms more) of the last 128 steps in which everybody decoded.",
        (Attribute("step", "", "number of the step"),
         Attribute("cause", "", "post, poll, save, execution, gap or preemption: the part furthest above its median"),
         Attribute("bound_ns", "ns", "the bound at that time"),
         Attribute("submit_ns", "ns", "`start_load_kv`, posts included"), Attribute("poll_ns", "ns", "polls"),
         Attribute("save_ns", "ns", "`wait_for_save`"), Attribute("execution_ns", "ns", "rest of the worker's step"),
         Attribute("gap_ns", "ns", "since the step before: scheduler, transport, sampling"),
         Attribute("tokens", "tokens", "scheduled tokens"), Attribute("requests", "", "scheduled requests"),
         Attribute("preempted", "", "requests that lost their blocks to this step"),
         Attribute("suppressed", "", "slow steps so far that got no span (10 of 128 steps at most do)"), RANK, THREAD),
    ),
    Span(
        THREADS_SAMPLE, "engine, scheduler and workers", "the sample before", "this sample",
        "Where work runs: CPU time by thread, from the kernel's accounting, and the push writer's queues. One a second "
        "at most while steps run, one in ten seconds otherwise. Arrays, one entry per kind and name of thread.",
        (Attribute("names", "", "names of the threads; native ones by their kernel name"),
         Attribute("kinds", "", "engine, push_writer, nixl (threads that came with the agent), kvlens, exporter, "
                   "python or native"),
         Attribute("threads", "", "threads of that name"),
         Attribute("cpu_ns", "ns", "CPU time since the sample before"),
         Attribute("wait_ns", "ns", "time ready to run but waiting for a core; absent where the kernel doesn't say"),
         Attribute("source", "", "schedstat (ns) or stat (clock ticks)"), RANK,
         Attribute("writer_queue", "", "push: items waiting for the writer thread (registrations, blocks, deferred)"),
         Attribute("writer_unmatched", "", "push: finished prompts that wait for a registration"),
         Attribute("writer_registrations", "", "push: registrations that wait for a finished prompt"),
         Attribute("writer_forwarded", "", "push: notifications that wait for the engine thread"),
         Attribute("writer_oldest_ns", "ns", "push: age of the oldest finished prompt or registration to be handled"),
         Attribute("writer_heartbeat_ns", "ns", "push: since the writer last looked for notifications")),
    ),
)  # fmt: skip
