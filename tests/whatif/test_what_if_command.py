"""`kvlens what-if` on the checked-in runs: the replay of the recorded mode, the document, the errors with a remedy."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import polars as pl
import pytest
from click.testing import CliRunner
from rich.console import Console

from analysis.breakdown import break_down
from analysis.commands.what_if import check_arrangement, what_if
from analysis.errors import KvlensError
from analysis.source import open_session
from analysis.whatif.calibrate import calibrate, list_jobs
from analysis.whatif.document import render_document
from analysis.whatif.observations import observe
from analysis.whatif.parameters import Arrangement
from analysis.whatif.predict import predict
from analysis.whatif.table import render_table

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
OTHER = {"pull": "push", "push": "pull"}


@pytest.fixture(scope="module")
def recorded():
    """Breakdown and observations of both checked-in runs."""
    found = {}
    for mode in OTHER:
        with open_session([RUNS / mode]) as session:
            breakdown = break_down(session)
            found[mode] = breakdown, observe(session, breakdown)
    return found


def run_command(*arguments):
    return CliRunner().invoke(what_if, [str(one) for one in arguments])


@pytest.mark.parametrize("mode", OTHER)
def test_the_recorded_mode_is_replayed(recorded, mode):
    """Ratios only: the band says that the model has the run's size and order, not how fast this machine is."""
    prediction = predict(*recorded[mode], Arrangement(OTHER[mode]), seed=1, replays=2, limit=1000)
    rows = prediction.requests
    for part in (0.5, 0.9):
        ratio = rows["own_ttft"].quantile(part) / rows["recorded_ttft"].quantile(part)
        assert 0.7 < ratio < 1.4
    assert rows.select(pl.corr("own_ttft", "recorded_ttft", method="spearman")).item() > 0.8
    assert 0.6 < rows["own_tpot"].median() / rows["recorded_tpot"].median() < 1.6


@pytest.mark.parametrize("mode", OTHER)
def test_every_parameter_says_where_it_comes_from(recorded, mode):
    parameters = calibrate(recorded[mode][1])
    assert {"contention", "prefill step", "decode step", "post", "wire"} <= {one.name for one in parameters.sources}
    assert all(one.origin and one.value for one in parameters.sources)
    jobs = list_jobs(recorded[mode][1], parameters)
    assert len(jobs) >= 0.9 * recorded[mode][0].budgets.height  # one request's spans may be cut off at its ends
    assert jobs[0].arrival == 0.0


def test_json_document():
    result = run_command(RUNS / "pull", "--mode", "push", "--json", "--replays", 2)
    assert result.exit_code == 0, result.output
    document = json.loads(result.output)
    assert document["schema"] == 1
    assert document["recorded"]["mode"], document["arrangement"]["mode"] == ("pull", "push")
    assert {"recorded", "replayed", "simulated", "predicted", "predicted_range"} == set(document["ttft_ms"])
    assert set(document["replay_error"]["ttft"]) == {"p50", "p90", "p99", "mean"}
    assert sum(entry["requests"] for entry in document["by_prompt"]) == document["requests"]
    assert sum(entry["requests"] for entry in document["by_load"]) == document["requests"]
    one = document["per_request"][0]
    assert one["predicted_ttft_ms"] >= one["recorded_ttft_ms"] + one["other_ttft_ms"] - one["own_ttft_ms"] - 1e-6


def test_same_seed_same_document(recorded):
    once, again, other = (
        render_document(predict(*recorded["push"], Arrangement("pull"), seed=seed, replays=1, limit=10))
        for seed in (5, 5, 6)
    )
    assert once == again
    assert once["per_request"] != other["per_request"]


def test_the_table_prints_error_assumptions_and_queues(recorded):
    console = Console(record=True, width=160, file=StringIO())
    console.print(render_table(predict(*recorded["push"], Arrangement("pull"), seed=1, replays=1, limit=10)))
    output = console.export_text()
    for text in ("replay error of the recorded mode", "Who gains, who loses", "Where a queue grows", "Assumed:"):
        assert text in output


def test_nothing_changed_is_predicted_as_recorded(recorded):
    document = render_document(predict(*recorded["pull"], Arrangement("pull"), seed=1, replays=1, limit=100))
    for one in document["per_request"]:
        assert one["predicted_ttft_ms"] == pytest.approx(max(one["recorded_ttft_ms"], one["other_ttft_ms"]), rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        ({"mode": "push", "late_binding": "random"}, "--mode pull --late-binding", 2),
        ({"mode": "push", "reader_thread": True}, "--mode pull --reader-thread", 2),
        ({"mode": "pull", "threshold": 64}, "--mode bidirectional --threshold", 2),
        ({"mode": "pull", "retention": 5.0}, "--mode bidirectional --retention", 2),
        ({"mode": "bidirectional"}, "recorded in bidirectional", 1),
    ],
)
def test_options_that_mean_nothing_are_refused_with_a_remedy(arguments, said, code):
    with pytest.raises(KvlensError, match=said) as raised:
        check_arrangement(Arrangement(**arguments), "pull")
    assert raised.value.exit_code == code


def test_a_cache_too_small_for_one_request_is_refused(recorded):
    with pytest.raises(KvlensError, match="--decode-blocks"):
        predict(*recorded["pull"], Arrangement("pull"), seed=1, replays=1, limit=10, overrides={"decode": 1})


def test_bidirectional_without_decisions_is_unknown(recorded):
    breakdown, observed = recorded["pull"]
    renamed = replace(breakdown, budgets=breakdown.budgets.with_columns(mode=pl.lit("bidirectional")))
    with pytest.raises(KvlensError, match="no decision spans"):
        predict(renamed, observed, Arrangement("bidirectional"), seed=1, replays=1, limit=10)


def test_an_unknown_run_names_the_remedy():
    result = run_command("no-such-run")
    assert result.exit_code == 1
    assert "Try:" in result.output


def test_without_step_records_whole_requests_stand_for_steps(recorded):
    breakdown, observed = recorded["pull"]
    names = ("steps", "prefill_steps", "decode_steps")
    bare = replace(observed, **{name: getattr(observed, name).clear() for name in names})
    prediction = predict(breakdown, bare, Arrangement("push"), seed=1, replays=1, limit=100)
    assert "step records" in {one.name for one in prediction.parameters.sources}
    ratio = prediction.requests["own_ttft"].median() / prediction.requests["recorded_ttft"].median()
    assert 0.5 < ratio < 2
