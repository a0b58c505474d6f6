"""Shape of a span's entry in the catalogue, and the attributes and processes that several entries share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Attribute:
    """One span attribute: name below ``kv_transfer.``, unit ("" for text and counts) and meaning."""

    name: str
    unit: str
    doc: str


@dataclass(frozen=True)
class Span:
    """One kind of span: the process that emits it, what bounds it, its attributes."""

    name: str
    process: str
    start: str
    end: str
    doc: str
    attributes: tuple[Attribute, ...] = field(default=())


REQUEST_ID = Attribute("request_id", "", "vLLM's internal request id, unique per attempt")
REQUEST_KEY = Attribute("request_key", "", "client-visible request id recovered from it")
RANK = Attribute("rank", "", "tensor-parallel rank of the worker")
THREAD = Attribute("thread", "", "name of the thread that made the call")
PEER_ENGINE = Attribute("peer_engine_id", "", "engine id of the other side")
PEER_REQUEST = Attribute("peer_request_id", "", "the other side's internal request id")
PROMPT_TOKENS = Attribute("prompt_tokens", "tokens", "length of the prompt")
FINISH_REASON = Attribute("finish_reason", "", "vLLM's final request status, lower case")
OUTCOME = Attribute("outcome", "", "how it ended")
BLOCKS = Attribute("blocks", "blocks", "KV-cache blocks held by the request")
DIRECTION = Attribute("direction", "", "READ (pull) or WRITE (push)")
DESCRIPTORS = Attribute("descriptors", "", "NIXL descriptors in the transfer")
BYTES = Attribute("bytes", "By", "bytes moved, as NIXL reports them")
KEPT = Attribute("kept", "", "only if the sampler rejected the request: why it is here, slow, failed or hint")
COMMON = (REQUEST_ID, REQUEST_KEY, KEPT)

P_SCHEDULER = "prefill engine, scheduler"
D_SCHEDULER = "decode engine, scheduler"
WORKER = "worker"
ROUTER = "router"
