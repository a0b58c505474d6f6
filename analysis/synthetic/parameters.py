"""What a synthetic fleet is made of: every figure is an assumption that is written into the run's manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

MS = 1_000_000
SECOND = 1_000 * MS

FAULT_SITES = (
    "router_dispatch", "prefill_compute", "handoff_dispatch", "decode_admission", "registration", "dispatch", "post",
    "wire", "completion", "first_decode",
)  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A delay of ms at a site for a share (0..1) of the requests; see FAULT_SITES."""

    site: str
    ms: float
    share: float


@dataclass(frozen=True)
class Parameters:
    """Parameters of a synthetic run; times in ms unless the name says otherwise.

    Defaults are orders of magnitude for Qwen3-32B (64 layers, 8 KV heads of 128, bf16: 256 KiB of KV per token) with
    one engine per P5en instance (8 H200, EFA of 3,200 Gbit/s): prefill at half of the bf16 peak, decode steps near the
    TPOT of 7 to 10 ms that is published for it, post as published for scattered memory (118 descriptors 0.46 ms,
    18,880: 46 ms). Queues are first come, first served: prompts of a prefill engine, and transfers of one of its ranks
    on the wire.

    rate: requests per second of the whole fleet; 0 takes what keeps the prefill engines busy for `utilisation`.
    clock_offset_ms, clock_drift_ppm: hosts' wall clocks are off, and their monotonic clocks run off, by up to this.
    drop: share of spans that are lost at random. kills: engines that die (and come back `restart_s` later).
    """

    requests: int = 10_000
    mode: str = "mixed"
    seed: int = 1
    prefill_engines: int = 8
    decode_engines: int = 8
    routers: int = 2
    ranks: int = 2
    rate: float = 0.0
    utilisation: float = 0.5
    input_lens: tuple[int, ...] = ()
    median_prompt_tokens: int = 3000
    prompt_spread: float = 0.9
    max_prompt_tokens: int = 32_000
    median_output_tokens: int = 128
    output_spread: float = 0.6
    prefill_tokens_per_s: float = 60_000.0
    prefill_overhead_ms: float = 8.0
    max_batched_tokens: int = 8192
    decode_step_ms: float = 8.0
    kv_bytes_per_token: int = 262_144
    block_tokens: int = 128
    descriptors_per_block: int = 64
    wire_gb_per_s_per_rank: float = 40.0
    wire_latency_ms: float = 0.05
    post_fixed_ms: float = 0.15
    post_us_per_descriptor: float = 2.4
    handshake_ms: float = 120.0
    network_ms: float = 0.15
    engine_ingress_ms: float = 1.2
    writer_poll_ms: float = 1.0
    clock_offset_ms: float = 500.0
    clock_drift_ppm: float = 50.0
    drop: float = 0.0
    kills: int = 0
    restart_s: float = 60.0
    faults: tuple[Fault, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what no run can be made of.

        Raises:
            ValueError: with what is wrong.
        """
        if self.mode not in ("push", "pull", "mixed"):
            raise ValueError(f"mode {self.mode!r} is none of push, pull, mixed")
        least = 2 if self.mode == "mixed" else 1
        for name in ("prefill_engines", "decode_engines"):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least} in mode {self.mode}")
        for fault in self.faults:
            if fault.site not in FAULT_SITES:
                raise ValueError(f"fault site {fault.site!r} is none of {', '.join(FAULT_SITES)}")
        if self.requests < 1 or self.routers < 1 or self.ranks < 1:
            raise ValueError("requests, routers and ranks must be at least 1")

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes of the engine groups."""
        return ("pull", "push") if self.mode == "mixed" else (self.mode,)

    def with_rate(self, mean_prompt_tokens: float) -> float:
        """Return requests per second: the given rate, or the one that loads the prefill engines as asked."""
        if self.rate > 0:
            return self.rate
        service_s = self.prefill_overhead_ms / 1e3 + mean_prompt_tokens / self.prefill_tokens_per_s
        return self.utilisation * self.prefill_engines / service_s
