"""The event model against theory and against itself: queues, conservation, idealised parts, blocks, binding."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from analysis.segments import SEGMENTS
from analysis.whatif.p5en import make_jobs as make_p5en_jobs
from analysis.whatif.p5en import make_parameters as make_p5en
from analysis.whatif.parameters import POLICIES, PULL, PUSH, Arrangement, Contention, Job, StepCost
from analysis.whatif.replay import replay

from .conftest import make_jobs, make_parameters

BOTH = (PULL, PUSH)


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_waiting_for_prefill_is_that_of_an_md1_queue(run_replay, load):
    service, count = 0.1, 4000
    # A budget of one prompt per step makes P a single server with a constant service time.
    parameters = make_parameters(StepCost(fixed=service), StepCost(fixed=1e-3), token_budget=1000)
    jobs = make_jobs(count, load / service, tokens=1000, output=1)
    rows = run_replay(jobs, parameters, Arrangement(PULL))
    waiting = (rows["seg_prefill_ingress"] + rows["seg_prefill_queue"]).mean()
    # P goes on polling between prompts, so one that comes to an idle P waits half an idle step on average.
    assert waiting == pytest.approx(load * service / (2 * (1 - load)), rel=0.12, abs=0.001)


def test_decode_steps_grow_with_the_batch(run_replay):
    parameters = make_parameters(StepCost(fixed=1e-3), StepCost(fixed=0.01, per_sequence=0.001))
    jobs = [Job(index, 0.0, 10, 50, 10) for index in range(4)]
    assert run_replay(jobs, parameters, Arrangement(PUSH))["tpot"].to_list() == pytest.approx([0.014] * 4)


@pytest.mark.parametrize("mode", BOTH)
def test_segments_sum_to_ttft(run_replay, busy, mode):
    rows = run_replay(busy[1], busy[0], Arrangement(mode))
    names = [f"seg_{name}" for name in SEGMENTS]
    off = rows.select((pl.sum_horizontal(names) - pl.col("ttft")).abs().max()).item()
    assert off < 1e-9
    assert rows.select(pl.min_horizontal(pl.col(name).min() for name in names)).item() >= 0
    assert rows.height == len(busy[1])


@pytest.mark.parametrize("mode", BOTH)
def test_same_seed_same_result_and_another_seed_another(run_replay, busy, mode):
    first, again, other = (run_replay(busy[1], busy[0], Arrangement(mode), seed) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


@pytest.mark.parametrize("mode", BOTH)
def test_an_infinite_wire_has_no_wire_and_makes_nothing_slower(run_replay, busy, mode):
    parameters, jobs = _without_noise(busy)
    before = run_replay(jobs, parameters, Arrangement(mode))
    after = run_replay(jobs, parameters, Arrangement(mode, infinite_wire=True))
    assert before["seg_wire"].max() > 0
    assert after["seg_wire"].abs().max() < 1e-12
    for part in (0.1, 0.5, 0.9):
        assert after["ttft"].quantile(part) <= before["ttft"].quantile(part)
    assert after["ttft"].mean() < before["ttft"].mean()


@pytest.mark.parametrize("mode", BOTH)
def test_without_coordination_its_segments_are_empty_and_it_is_never_slower(run_replay, busy, mode):
    parameters, jobs = _without_noise(busy)
    before = run_replay(jobs, parameters, Arrangement(mode))
    after = run_replay(jobs, parameters, Arrangement(mode, no_coordination=True))
    gone = ("handoff_dispatch", "pairing", "registration", "dispatch", "post", "completion_lag")
    assert (
        after.select(pl.max_horizontal(pl.col(f"seg_{name}").fill_null(0).abs().max() for name in gone)).item() < 1e-9
    )
    for part in (0.1, 0.5, 0.9):
        assert after["ttft"].quantile(part) <= before["ttft"].quantile(part)


def test_a_reader_thread_takes_the_posts_out_of_the_steps(run_replay, busy):
    parameters, jobs = _without_noise(busy)
    parameters = replace(parameters, network=replace(parameters.network, post_fixed=0.05))
    before = run_replay(jobs, parameters, Arrangement(PULL))
    after = run_replay(jobs, parameters, Arrangement(PULL, reader_thread=True))
    assert after["tpot"].mean() < 0.9 * before["tpot"].mean()
    assert after["seg_post"].mean() == pytest.approx(before["seg_post"].mean())


def test_a_finished_prompt_waits_in_push_for_the_next_step_that_computes():
    """docs/tpot.md: a CPU hands the blocks over when the next forward is over, an accelerator at its launch."""
    jobs = [Job(0, 0.0, 1000, 2, 0), Job(1, 0.01, 1000, 2, 0)]
    waited = {}
    for submit_at in (0.0, 1.0):
        parameters = make_parameters(StepCost(fixed=0.1), StepCost(fixed=1e-3), submit_at=submit_at)
        waited[submit_at] = replay(jobs, parameters, Arrangement(PUSH), 1).requests["seg_dispatch"][0]
    assert waited[0.0] == pytest.approx(0.0)
    assert waited[1.0] == pytest.approx(0.1)


def test_a_write_is_noticed_a_step_later_than_a_read():
    parameters = make_parameters(StepCost(fixed=0.1), StepCost(fixed=1e-3), idle_step=0.004)
    lags = {}
    for mode in BOTH:
        rows = replay([Job(0, 0.0, 1000, 2, 0)], parameters, Arrangement(mode), 1).requests
        lags[mode] = rows["seg_completion_lag"][0]
    assert 0 <= lags[PULL] <= 0.004 + 1e-9
    assert 0.004 - 1e-9 <= lags[PUSH] <= 0.008 + 1e-9


def test_early_commitment_holds_decode_blocks_while_prefill_computes(busy):
    parameters, jobs = busy
    held = {mode: replay(jobs, parameters, Arrangement(mode), 1).loads[1].blocks_mean for mode in BOTH}
    assert held[PUSH] > 1.5 * held[PULL]


def test_a_full_cache_on_decode_becomes_admission_time(run_replay, busy):
    parameters, jobs = busy
    small = replace(parameters, decode=replace(parameters.decode, blocks=150))
    rows = run_replay(jobs, small, Arrangement(PULL))
    assert run_replay(jobs, parameters, Arrangement(PULL))["seg_decode_admission"].max() < 1e-9
    assert rows["seg_decode_admission"].max() > 0.01
    assert replay(jobs, small, Arrangement(PULL), 1).loads[1].blocks_max <= 150


def test_engines_on_one_machine_slow_each_other_down(run_replay, busy):
    parameters, jobs = _without_noise(busy)
    shared = replace(parameters, contention=Contention(prefill=1.0, decode=1.0))
    alone, beside = (run_replay(jobs, one, Arrangement(PUSH)) for one in (parameters, shared))
    assert beside["seg_prefill_compute"].mean() > 1.3 * alone["seg_prefill_compute"].mean()


@pytest.mark.parametrize("policy", POLICIES)
def test_late_binding_spreads_requests(run_replay, busy, policy):
    parameters, jobs = busy
    rows = run_replay(jobs, parameters, Arrangement(PULL, late_binding=policy, decoders=3))
    counts = rows["decode"].value_counts()["count"].to_list()
    assert len(counts) == 3
    assert min(counts) >= (5 if policy == "least_loaded" else 20)


def test_the_least_loaded_decoder_serves_faster_than_a_random_one(run_replay):
    parameters = make_parameters(StepCost(fixed=0.01), StepCost(fixed=0.01, per_sequence=0.004), sequences=64)
    jobs = make_jobs(600, 30.0, output=30)
    tpot = {
        policy: run_replay(jobs, parameters, Arrangement(PULL, late_binding=policy, decoders=4))["tpot"].mean()
        for policy in ("random", "least_loaded")
    }
    assert tpot["least_loaded"] < tpot["random"]


def test_shape_of_the_published_table():
    """Equal at light load and short prompts; a large gap in TTFT and TPOT at 16k tokens and 8 requests/s."""
    found = {}
    for tokens, rate in ((1024, 1.0), (16_384, 8.0)):
        for mode in BOTH:
            rows = replay(make_p5en_jobs(tokens, rate, 150), make_p5en(mode), Arrangement(mode), 1).requests
            found[tokens, mode] = rows["ttft"].median(), rows["tpot"].median()
    assert found[1024, PULL][0] - found[1024, PUSH][0] < 0.02
    assert found[1024, PULL][1] == pytest.approx(found[1024, PUSH][1], rel=0.03)
    assert found[16_384, PULL][0] > 1.5 * found[16_384, PUSH][0]
    assert found[16_384, PULL][1] > 1.3 * found[16_384, PUSH][1]


def _without_noise(world):
    """The same world with one value for everything that is drawn: what is left of chance is the arrivals."""
    parameters, jobs = world
    flat = {role: replace(getattr(parameters, role), cost=replace(getattr(parameters, role).cost, noise=(1.0,)))
            for role in ("prefill", "decode")}  # fmt: skip
    return replace(parameters, **flat), jobs


def make_conversation(turns=4, tokens=1000, step=200, gap=1.0):
    """Jobs of one conversation in which each turn repeats the history."""
    jobs = []
    for turn in range(turns):
        size = tokens + turn * step
        previous = {"previous": turn - 1, "gap": gap, "offered": size - step} if turn else {}
        jobs.append(Job(turn, turn * gap, size, 4, size * 1000, **previous))
    return jobs


def make_reuse_parameters(**limits):
    made = make_parameters(StepCost(fixed=0.01, per_prompt_token=1e-3), StepCost(fixed=1e-3))
    return replace(made, threshold=64, **{"retention": 100.0, **limits})


def test_a_later_turn_reads_back_what_decode_kept(run_replay):
    rows = run_replay(make_conversation(), make_reuse_parameters(), Arrangement("bidirectional"))
    assert rows["seg_readback"].to_list()[0] is None
    assert rows["seg_readback"].null_count() == 1
    assert rows["seg_prefill_compute"][0] == pytest.approx(1.01)
    assert rows["seg_prefill_compute"][1:].to_list() == pytest.approx([0.21] * 3)
    off = rows.select((pl.sum_horizontal(pl.selectors.starts_with("seg_")) - pl.col("ttft")).abs().max()).item()
    assert off < 1e-9


@pytest.mark.parametrize("changed", [{"threshold": 10_000}, {"retention": 0.5}])
def test_a_threshold_or_a_short_retention_computes_again(run_replay, changed):
    rows = run_replay(make_conversation(), make_reuse_parameters(), Arrangement("bidirectional", **changed))
    assert rows["seg_readback"].null_count() == rows.height
    assert rows["seg_prefill_compute"].to_list() == pytest.approx([1.01, 1.21, 1.41, 1.61])


def test_retention_holds_blocks_on_decode():
    held = {}
    for seconds in (0.1, 50.0):
        parameters = make_reuse_parameters(retention=seconds)
        jobs = [*make_conversation(), Job(9, 30.0, 100, 4, 100)]
        held[seconds] = replay(jobs, parameters, Arrangement("bidirectional"), 1).loads[1].blocks_mean
    assert held[50.0] > 3 * held[0.1]


def test_a_turn_waits_for_the_answer_to_the_one_before(run_replay):
    slow = replace(make_reuse_parameters(), decode=replace(make_reuse_parameters().decode, cost=StepCost(fixed=1.0)))
    rows = replay(make_conversation(turns=2), slow, Arrangement("bidirectional"), 1)
    # Four tokens at 1 s, then the gap: the second turn cannot have started at its recorded time of 1 s.
    assert rows.seconds > 4.0 + 1.0 + 4.0
