"""Repairs of vLLM 0.32 that only the lab makes, each asked for by an environment variable and named in the manifest.

`readback_once`: with `kv_load_failure_policy` "recompute", a read of earlier turns that fails (or is declined because
the blocks expired) sets the request back to no computed tokens. The stock pull scheduler then offers the same read
again, but starts no second one, so the request waits for it for ever. Here it offers nothing the second time, and P
computes the prompt, which is what the policy says. With the stock policy "fail" the request is an error, which the
lab's router repeats without the readback.
"""

from __future__ import annotations

from typing import Any

ENV_READBACK_ONCE = "KVLENS_LAB_READBACK_ONCE"


def install_readback_once() -> None:
    """Have the stock pull scheduler offer a readback once per request."""
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl.pull_scheduler import NixlPullConnectorScheduler

    offer_once(NixlPullConnectorScheduler)


def offer_once(scheduler: type) -> None:
    """Replace the class's `get_num_new_matched_tokens` by one that knows that a readback was tried."""
    stock = scheduler.get_num_new_matched_tokens  # type: ignore[attr-defined]
    if getattr(stock, "kvlens_lab", False):
        return

    def get_num_new_matched_tokens(self: Any, request: Any, num_computed_tokens: int) -> Any:
        params = request.kv_transfer_params
        # Set by update_state_after_alloc: until then a question may be repeated, afterwards the read has been tried.
        if params and params.get("do_remote_decode") and params.get("_remote_blocks_processed"):
            return 0, False
        return stock(self, request, num_computed_tokens)

    get_num_new_matched_tokens.kvlens_lab = True  # type: ignore[attr-defined]
    scheduler.get_num_new_matched_tokens = get_num_new_matched_tokens  # type: ignore[attr-defined]
