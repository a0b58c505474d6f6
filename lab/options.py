"""The options of ``kvlens lab run`` and ``up``, and how they become a pair's and a workload's settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from .errors import LabError
from .faults import SITES, Fault
from .history import GAPS, KINDS
from .host_clock import HostClock, parse_clocks

if TYPE_CHECKING:
    from .workload import Workload


def pair_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide how a pair is started."""
    options = [
        click.option("--mode", type=click.Choice(["push", "pull", "bidirectional"]), default="pull", show_default=True),
        click.option("--stock", type=click.Choice(["p", "d", "both"]), help="Side that runs vLLM's own connector."),
        click.option("--decoders", type=click.IntRange(1), default=1, show_default=True, help="Decode engines."),
        click.option("--tp", type=click.IntRange(1), default=1, show_default=True, help="Tensor-parallel size."),
        click.option("--prefix-caching/--no-prefix-caching", default=False, show_default=True),
        click.option("--otlp-endpoint", help="Give vLLM this OTLP endpoint, which makes it keep traceparent."),
        click.option(
            "--extra-config", metavar="JSON", callback=parse_object, help="Added to kv_connector_extra_config."
        ),
        click.option(
            "--retention", type=click.FloatRange(0, min_open=True), metavar="S",
            help="Seconds that D keeps blocks for the next turn (vLLM: 480; it reads none in the last 5).",
        ),
        click.option(
            "--threshold", type=click.IntRange(0), metavar="TOKENS", help="P computes fewer than these (vLLM: 64)."
        ),
        click.option(
            "--load-failure-policy", type=click.Choice(["fail", "recompute"]), help="vLLM's own, for a failed read."
        ),
        click.option(
            "--stale", type=click.Choice(["send", "drop"]), default="send", show_default=True,
            help="Router: what to do with blocks that have expired by its clock.",
        ),
        click.option(
            "--edited", type=click.Choice(["trust", "send", "drop"]), default="trust", show_default=True,
            help="Router: compare token prompts with what D holds, and send or drop blocks that don't fit.",
        ),
        click.option(
            "--sticky/--no-sticky", default=True, show_default=True, help="Router: a conversation stays with its D."
        ),
        click.option(
            "--retry/--no-retry", default=True, show_default=True,
            help="Router: send a prefill leg that failed with a readback again without.",
        ),
        click.option(
            "--clock", "clocks", multiple=True, callback=_parse_clocks, metavar="ENGINE=OFFSET[,DRIFT]",
            help="An engine lives as if on another host, its clocks wrong: P0=-120ms,40ppm.",
        ),
        click.option("--cache-usage/--no-cache-usage", default=None, help="Note vLLM's cache usage in the run."),
        click.option(
            "--propagate", type=click.Choice(["client", "always", "never"]), default="client", show_default=True,
            help="Router: forward traceparent if the client sent one, make one, or drop it.",
        ),
        click.option("--rewrite-ids", is_flag=True, help="Router: its own X-Request-Id on both legs."),
        click.option("--port", type=click.IntRange(1, 65535), help="Port of the router; a free one by default."),
        click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Run directory."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def parse_object(_: click.Context, __: click.Parameter, value: str | None) -> dict[str, Any]:
    try:
        parsed = json.loads(value) if value else {}
    except ValueError as error:
        raise click.BadParameter(f"not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise click.BadParameter("must be a JSON object")
    return parsed


def _parse_clocks(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, HostClock]:
    return parse_clocks(values)


def workload_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that decide what is sent."""
    options = [
        click.option(
            "--requests", type=click.IntRange(1), default=20, show_default=True, help="Requests (conversations)."
        ),
        click.option(
            "--rate", type=click.FloatRange(0, min_open=True), help="Poisson arrivals per second (open loop)."
        ),
        click.option("--concurrency", type=click.IntRange(1), help="Most requests in flight; alone: closed loop."),
        click.option(
            "--input-lens", default="200,1000,4000", show_default=True, callback=_parse_lengths, metavar="N,N,..."
        ),
        click.option("--output-len", type=click.IntRange(1), default=16, show_default=True, help="Output tokens."),
        click.option("--seed", type=int, default=1, show_default=True),
        click.option("--turns", type=click.IntRange(1), help="Turns per conversation (bidirectional: 2, else 1)."),
        click.option(
            "--turn-tokens", type=click.IntRange(1), default=100, show_default=True, help="New tokens of a later turn."
        ),
        click.option(
            "--history", default="sound", show_default=True, callback=_parse_kinds, metavar="KIND,KIND,...",
            help=f"Later turns, used in turn: {', '.join(KINDS)}.",
        ),
        click.option(
            "--changed-tokens", type=click.IntRange(1), help="Tokens that an edit replaces or stripping leaves out."
        ),
        click.option(
            "--gap", "think_s", type=click.FloatRange(0), default=0.0, show_default=True,
            help="Mean seconds between two turns (tools, people).",
        ),
        click.option(
            "--gaps", type=click.Choice(list(GAPS)), default="fixed", show_default=True, help="Their distribution."
        ),
        click.option(
            "--gap-spread", type=click.FloatRange(0), default=1.0, show_default=True, help="Sigma of lognormal gaps."
        ),
        click.option(
            "--pause", "pause_s", type=click.FloatRange(0), help="Seconds before a paused turn (retention and 2 s)."
        ),
        click.option(
            "--conversation-via", type=click.Choice(["body", "header", "baggage"]), default="body", show_default=True,
            help="Where the conversation's id travels.",
        ),
        click.option("--chat", is_flag=True, help="Chat completions instead of completions."),
        click.option("--stream/--no-stream", default=True, show_default=True),
        click.option("--traceparent", is_flag=True, help="Send a W3C traceparent with every request."),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


_WORKLOAD = (
    "requests", "rate", "concurrency", "input_lens", "output_len", "seed", "turn_tokens", "history", "changed_tokens",
    "think_s", "gaps", "gap_spread", "conversation_via", "chat", "stream", "traceparent",
)  # fmt: skip


def make_workload(options: dict[str, Any]) -> tuple[Workload, dict[str, Any]]:
    """Split the options of ``lab run`` into the workload and what is left for the pair."""
    from .conversations import Policy
    from .workload import Workload

    rest = dict(options)
    turns, pause_s = rest.pop("turns"), rest.pop("pause_s")
    settings = {name: rest.pop(name) for name in _WORKLOAD}
    pause_s = (rest["retention"] or Policy.retention_s) + 2.0 if pause_s is None else pause_s
    default_turns = 2 if rest["mode"] == "bidirectional" else 1
    return Workload(turns=turns or default_turns, pause_s=pause_s, **settings), rest


def make_pair_settings(options: dict[str, Any]) -> dict[str, Any]:
    """Return the pair's settings: retention and threshold go to the connector, the rest to the router."""
    settings = dict(options)
    retention, threshold = settings.pop("retention"), settings.pop("threshold")
    extra = {"decoder_kv_blocks_ttl": retention, "kv_recompute_threshold": threshold}
    settings["extra_config"] = {
        **{name: value for name, value in extra.items() if value is not None}, **(settings["extra_config"] or {})
    }  # fmt: skip
    settings["conversations"] = {name: settings.pop(name) for name in ("stale", "edited", "sticky")}
    return settings


def _parse_kinds(_: click.Context, __: click.Parameter, value: str) -> tuple[str, ...]:
    kinds = tuple(part.strip() for part in value.split(","))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise click.BadParameter(f"there is no kind of turn {unknown[0]!r}: use {', '.join(KINDS)}")
    return kinds


def _parse_lengths(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter("must be token counts separated by commas, like 200,1000,4000") from error


def parse_faults(values: Sequence[str]) -> dict[str, Fault]:
    """Return the faults of ``SITE=MS[@ENGINE]`` arguments."""
    faults = {}
    for value in values:
        site, _, rest = value.partition("=")
        milliseconds, _, engine = rest.partition("@")
        try:
            faults[site] = Fault(float(milliseconds), engine or None)
        except ValueError:
            raise LabError(
                f"cannot read fault {value!r}", "write it as wire=80 or wire=80@decode", exit_code=2
            ) from None
        if site not in SITES:
            raise LabError(f"there is no fault site {site!r}", f"use one of: {', '.join(SITES)}", exit_code=2)
    return faults
