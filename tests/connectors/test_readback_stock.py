"""A turn and the next one through vLLM's own pull scheduler: what D answers is what P decides on."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import MS, Sink, build_scheduler, make_factory

from instrumented_connectors import events
from instrumented_connectors.decide import Policy
from instrumented_connectors.prefix_digest import PARAMETER, make_key
from instrumented_connectors.prefix_giver import PrefixGiver
from instrumented_connectors.recorder import Recorder
from instrumented_connectors.scheduler_lens import SchedulerLens

stock = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler")
BLOCK = 32
KEY = make_key(None)


def make_stock(engine_id: str) -> Any:
    """vLLM's scheduler half without its configuration and listener."""
    scheduler = object.__new__(stock.NixlPullConnectorScheduler)
    parallel = SimpleNamespace(decode_context_parallel_size=1, pipeline_parallel_size=1)
    vars(scheduler).update(
        engine_id=engine_id, is_bidirectional_kv_xfer_enabled=True, kv_recompute_threshold=64, _kv_lease_duration=30,
        decoder_kv_blocks_ttl=480, _reqs_need_send={}, _reqs_need_recv={}, _reqs_not_processed=set(),
        _heartbeat_req_engine={}, side_channel_host="127.0.0.1", side_channel_port=5600, transfer_tp_size=1,
        vllm_config=SimpleNamespace(parallel_config=parallel), get_exchange_clipped_blocks=lambda blocks: blocks,
    )  # fmt: skip
    return scheduler


def finish_on_d(tokens: list[int]) -> dict[str, Any]:
    """The first turn ends on D with its blocks kept; returns the parameters as a router gets them."""
    from vllm.v1.request import RequestStatus

    request = SimpleNamespace(
        request_id="cmpl-t0-0-aaaaaaaa", kv_transfer_params={"do_remote_prefill": False, "remote_block_ids": [[1]]},
        status=RequestStatus.FINISHED_LENGTH_CAPPED, all_token_ids=[*tokens, 7], num_computed_tokens=len(tokens),
        prompt_token_ids=tokens[:100],
    )  # fmt: skip
    blocks = ([*range(5, 5 + -(-len(tokens) // BLOCK))],)
    result = make_stock("D0").request_finished(request, blocks)
    PrefixGiver(Recorder(10), BLOCK, KEY, 10).give(request, result)
    held, answer = result
    assert held
    assert answer["do_remote_decode"]
    return dict(json.loads(json.dumps(answer)))


def decide_on_p(params: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    """The next turn on P: vLLM's own class answers, the lens and the builders record."""
    sink, recorder = Sink(), Recorder(100)
    scheduler = build_scheduler(make_factory(sink, "P0"), mode="bidirectional")
    decisions = scheduler._decisions
    decisions.policy, decisions.prefix_key = Policy(True, 64), KEY
    lens, stock_p = SchedulerLens(recorder, consumes=False), make_stock("P0")
    request = SimpleNamespace(
        request_id="cmpl-t1-0-bbbbbbbb", kv_transfer_params={**params, "do_remote_decode": True}, trace_headers=None,
        num_prompt_tokens=len(prompt), prompt_token_ids=prompt,
    )  # fmt: skip
    lens.arrived(request)
    result = stock_p.get_num_new_matched_tokens(request, 0)
    lens.matched(request, 0, result)
    lens.allocated(request, SimpleNamespace(blocks=([1] * 8,)), result[0])
    told = (events.TOLD, recorder._events[-1][1] + 9 * MS, (request.request_id,), (), frozenset())
    done = (events.FINISH, told[1] + MS, request.request_id, "finished_stopped", len(prompt), 1, 8, False)
    for event in [*recorder.drain(), told, done]:
        for builder in (decisions, scheduler):
            if event[0] in builder.handlers:
                builder.handlers[event[0]](event)
    (span,) = sink.named("decision")
    return span


def test_a_continuation_is_fetched_and_matches() -> None:
    tokens = list(range(1000, 1207))
    span = decide_on_p(finish_on_d(tokens), [*tokens, 7, *range(40)])
    assert (span["decision"], span["reason"], span["fetch_tokens"], span["remote_tokens"]) == (
        "fetch", "fetched", 207, 207,
    )  # fmt: skip
    assert (span["prefix_match"], span["prefix_blocks"]) == ("yes", 6)
    assert (span["peer_engine_id"], span["peer_request_id"]) == ("D0", "cmpl-t0-0-aaaaaaaa")


def test_stripped_reasoning_is_fetched_all_the_same_and_named() -> None:
    tokens = list(range(1000, 1207))
    span = decide_on_p(finish_on_d(tokens), [*tokens[:120], *tokens[180:], *range(100)])
    assert (span["reason"], span["prefix_match"], span["prefix_mismatch_block"]) == ("fetched", "no", 120 // BLOCK)


def test_a_router_that_drops_the_digest_leaves_it_unknown() -> None:
    tokens = list(range(1000, 1207))
    params = finish_on_d(tokens)
    del params[PARAMETER]
    assert decide_on_p(params, [*tokens, 7, *range(40)])["prefix_match"] == "unknown"
