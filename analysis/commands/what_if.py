"""`kvlens what-if`: what another arrangement would have done to the requests of a recorded run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import rich_click as click

from ..breakdown import Breakdown, break_down
from ..errors import KvlensError
from ..source import open_session
from ..whatif.document import render_document
from ..whatif.observations import Observations, observe
from ..whatif.parameters import MODES, POLICIES, PUSH, Arrangement
from ..whatif.predict import Prediction, find_mode, predict
from ..whatif.progress import show_progress
from ..whatif.reuse import Reuse, observe_reuse
from ..whatif.table import render_table
from .breakdown import make_console

MAX_REPLAYS = 8
WANTED = 4000
"""Requests to simulate in each arrangement where --replays is not given: small runs are replayed more often."""


@click.command("what-if")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--mode", type=click.Choice(MODES), help="Connector to simulate; the recorded one by default.")
@click.option("--reader-thread", is_flag=True, help="Pull: reads are posted from a thread of their own.")
@click.option("--infinite-wire", is_flag=True, help="Bytes land as the post returns.")
@click.option("--no-coordination", is_flag=True, help="No hop, registration, post or polling between the engines.")
@click.option("--threshold", metavar="N", type=click.IntRange(min=0), help="Bidirectional: kv_recompute_threshold.")
@click.option("--retention", metavar="S", type=click.FloatRange(min=0), help="Bidirectional: decoder_kv_blocks_ttl.")
@click.option("--late-binding", type=click.Choice(POLICIES), help="Pull: choose D by this when the prompt is done.")
@click.option("--decoders", metavar="N", type=click.IntRange(min=1), help="Decode engines; as recorded by default.")
@click.option("--prefill-blocks", metavar="N", type=click.IntRange(min=1), help="KV blocks of each prefill engine.")
@click.option("--decode-blocks", metavar="N", type=click.IntRange(min=1), help="KV blocks of each decode engine.")
@click.option("--seed", type=int, default=1, show_default=True, help="Of everything that is drawn.")
@click.option("--replays", metavar="N", type=click.IntRange(min=1), help=f"Of each arrangement [up to {MAX_REPLAYS}].")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), default=20_000, show_default=True, help="Requests.")
@click.option("--json", "as_json", is_flag=True, help="Print the JSON document (schema 1) instead of tables.")
def what_if(
    *, run: Path, mode: str | None, reader_thread: bool, infinite_wire: bool, no_coordination: bool,
    threshold: int | None, retention: float | None, late_binding: str | None, decoders: int | None,
    prefill_blocks: int | None,    decode_blocks: int | None, seed: int, replays: int | None, limit: int, as_json: bool,
) -> None:  # fmt: skip
    """Replay a recorded run through an event model of another arrangement.

    The model is calibrated on the run itself and first replays the recorded mode: that error is printed, and bounds the
    trust in the prediction. docs/what-if.md describes the model.

    \b
    Examples:
      kvlens what-if runs/pull --mode push
      kvlens what-if runs/pull --infinite-wire
      kvlens what-if runs/pull --reader-thread --json | jq '.ttft_ms'
      kvlens what-if runs/pull --late-binding least_loaded --decoders 2
    """
    with open_session([run]) as session:
        breakdown = break_down(session)
        recorded = find_mode(breakdown)
        other = Arrangement(
            mode or recorded, reader_thread=reader_thread, infinite_wire=infinite_wire, no_coordination=no_coordination,
            late_binding=late_binding, decoders=decoders, threshold=threshold, retention=retention,
        )  # fmt: skip
        check_arrangement(other, recorded)
        observed, reuse = observe(session, breakdown), observe_reuse(session, breakdown.budgets)
    blocks = {"prefill": prefill_blocks, "decode": decode_blocks}
    prediction = _predict(
        breakdown, observed, other, reuse=reuse, seed=seed, replays=replays, limit=limit, blocks=blocks
    )
    if as_json:
        click.echo(json.dumps(render_document(prediction), ensure_ascii=False, allow_nan=False))
    else:
        make_console().print(render_table(prediction))


def _predict(
    breakdown: Breakdown, observed: Observations, other: Arrangement, *, reuse: Reuse | None, seed: int,
    replays: int | None, limit: int, blocks: dict[str, int | None],
) -> Prediction:  # fmt: skip
    count = max(min(breakdown.budgets.height, limit), 1)
    times = replays or max(1, min(MAX_REPLAYS, WANTED // count))
    with show_progress(2 * times * count, sys.stderr) as progress:
        return predict(
            breakdown,
            observed,
            other,
            seed=seed,
            replays=times,
            limit=limit,
            reuse=reuse,
            overrides=blocks,
            progress=progress,
        )


def check_arrangement(other: Arrangement, recorded: str) -> None:
    """Refuse options that mean nothing in a mode. Raises KvlensError (exit code 2)."""
    if other.mode == PUSH and (other.reader_thread or other.late_binding):
        option = "--reader-thread" if other.reader_thread else "--late-binding"
        why = (
            "P's writer thread posts already" if other.reader_thread else "it binds to D before the prompt is computed"
        )
        raise KvlensError(f"{option} means nothing in push: {why}", f"--mode pull {option} ...", exit_code=2)
    if other.mode != "bidirectional" and (other.threshold is not None or other.retention is not None):
        option = "--threshold" if other.threshold is not None else "--retention"
        raise KvlensError(f"{option} belongs to bidirectional", f"--mode bidirectional {option} ...", exit_code=2)
    if "bidirectional" in (other.mode, recorded) and other.mode != recorded:
        raise KvlensError(
            f"a {recorded} run does not tell what {other.mode} would do: "
            "which turns belong together and what D kept is only in a bidirectional run",
            f"kvlens what-if of a run recorded in {other.mode}, or --mode push or pull of a push or pull run",
        )
