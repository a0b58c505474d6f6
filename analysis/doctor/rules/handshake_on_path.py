"""Requests wait for the first contact of two engines.

The first transfer between two engines exchanges metadata over the side channel. vLLM forgets a peer after
`engine_ttl` seconds without traffic, and a restarted engine is new to everybody.

Finding: `handshake` is at least 20 % of the TTFT and 20 ms, in a third of the requests (a single cold start is
none).

Remedy: warm up each pair; `engine_ttl` above the longest idle time; a quick side channel
(`VLLM_NIXL_SIDE_CHANNEL_HOST`).
"""

from __future__ import annotations

from ..facts import Facts
from ..finding import WARNING, Finding, Rule
from ._segments import find_material, judge_segment


def check(facts: Facts) -> Finding | None:
    """Requests in which handshake is a material part of the TTFT."""
    affected = find_material(facts.budgets, "handshake")
    return judge_segment(RULE, "handshake", affected, facts.budgets.height, "requests waited for a handshake")


RULE = Rule(
    "handshake-on-path",
    WARNING,
    "warm every pair of engines up before traffic; raise kv_connector_extra_config.engine_ttl (3600 s) "
    "above the longest idle time",
    check,
    cases=(),
)
