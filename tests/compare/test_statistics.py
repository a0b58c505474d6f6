"""Error rate and power of the verdicts, measured on synthetic runs whose truth is known."""

import numpy as np
import pytest
from scipy import stats
from synthetic import make_requests, make_run

from analysis.compare import estimate
from analysis.compare.comparison import compare_breakdowns, estimate_all, find_share_explained
from analysis.compare.estimate import FORGETFUL, batch_means, measure_memory
from analysis.compare.matching import match_pairs, match_strata
from analysis.compare.verdict import BETTER, NO_EVIDENCE, TOO_FEW, UNRESOLVED, WORSE, adjust, judge

REPETITIONS = 200
ALPHA = 0.05
LEFT_OUT = ("route", "prefill_ingress", "decode_admission", "dispatch", "post", "decode_queue", "delivery")


@pytest.fixture
def no_bootstrap(monkeypatch):
    """Normal intervals in place of bootstraps: hundreds of comparisons in seconds; the rank tests decide as ever."""
    monkeypatch.setattr(estimate, "MAX_BOOTSTRAP", 0)


def judge_only(requests, number, *, other=None, memory=0.0, paired=True, **effects):
    """Verdicts alone, without quantiles and tables."""
    gone = {name: 0.0 for name, factor in effects.get("scale", {}).items() if factor == 0}
    a = make_run(requests, 2 * number + 1, memory=memory, scale=gone).budgets
    b = make_run(other or requests, 2 * number + 2, memory=memory, **effects).budgets
    matched = match_pairs(a, b) if paired else match_strata(a, b)
    found = estimate_all(matched, 1 - ALPHA, np.random.default_rng(number))
    return {verdict.name: verdict for verdict in judge(found, {}, ALPHA)}


def compare(requests, number, *, other=None, memory=0.0, paired=True, **effects):
    common = {"memory": memory, "seeded": 7 if paired else None}
    a = make_run(requests, 2 * number + 1, name="A", **common)
    b = make_run(other or requests, 2 * number + 2, name="B", **common, **effects)
    return compare_breakdowns(a, b, alpha=ALPHA)


def words(comparison):
    return {verdict.name: verdict.word for verdict in comparison.verdicts}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "paired", "memory"),
    [("pairs", True, 0.0), ("pairs that queue (AR(1), 0.6)", True, 0.6), ("strata", False, 0.0)],
)
@pytest.mark.usefixtures("no_bootstrap")
def test_a_against_a_errs_no_more_than_stated(title, paired, memory, capsys):
    """200 pairs of runs without any difference: false verdicts in at most alpha of them (binomial 99.9 % bound)."""
    false = 0
    for number in range(REPETITIONS):
        # Strata cost a test per stratum and row: two lengths and half of the segments say as much.
        prompts, scale = ((200, 1000, 3000), {}) if paired else ((200, 1000), dict.fromkeys(LEFT_OUT, 0.0))
        requests = make_requests(60, 10_000 + number, prompts=prompts)
        other = None if paired else make_requests(60, 20_000 + number, prompts=prompts)
        found = judge_only(requests, number, other=other, memory=memory, paired=paired, scale=scale)
        false += bool({BETTER, WORSE} & {verdict.word for verdict in found.values()})
    allowed = int(stats.binom.ppf(0.999, REPETITIONS, ALPHA))
    with capsys.disabled():
        print(f"\nA/A, {title}: {false} of {REPETITIONS} with any false verdict (stated {ALPHA:.0%}, bound {allowed})")
    assert false <= allowed


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, 150, 400])
@pytest.mark.usefixtures("no_bootstrap")
def test_power_for_planted_effects_of_five_percent(count, capsys):
    """A 5 % effect on every segment and on TPOT: the share of repetitions that call it worse, printed."""
    repetitions = 40
    scale = dict.fromkeys(("prefill_compute", "prefill_queue", "wire", "first_decode", "completion_lag"), 1.05)
    found = dict.fromkeys((*scale, "ttft", "tpot"), 0)
    for number in range(repetitions):
        named = judge_only(make_requests(count, 500 + number), number, scale=scale, tpot_scale=1.05, noise=0.1)
        for name in found:
            found[name] += named[name].word == WORSE
            assert named[name].word != BETTER
    power = {name: hits / repetitions for name, hits in found.items()}
    with capsys.disabled():
        listed = ", ".join(f"{name} {share:.0%}" for name, share in power.items())
        print(f"\npower for +5 %, {count} pairs, noise 10 %: {listed}")
    # 5 % against a spread of 14 % between the two values of a pair: with 400 pairs the effect is seven standard errors.
    assert count < 400 or min(power.values()) >= 0.9


@pytest.mark.slow
def test_intervals_cover_the_truth():
    """95 % intervals of a mean difference cover the planted effect in about 95 % of repetitions."""
    covered, repetitions = 0, 200
    for number in range(repetitions):
        requests = make_requests(80, 900 + number)
        sides = make_run(requests, 2 * number + 1), make_run(requests, 2 * number + 2, scale={"prefill_compute": 1.1})
        samples = match_pairs(*(side.budgets for side in sides)).pool("prefill_compute")
        truth = 0.1 * np.mean(120 * requests["prompt_tokens"] / 1000 * requests["difficulty"])
        found = estimate.estimate_pairs(*samples, 1 - ALPHA, np.random.default_rng(number))
        covered += found.low <= truth <= found.high
    assert covered >= stats.binom.ppf(0.001, repetitions, 0.93)


def test_segments_explain_the_difference_of_ttft():
    comparison = compare(make_requests(100, 3), 1, scale={"wire": 3.0, "decode_queue": 0.2})
    by_name = {verdict.name: verdict.estimate.difference for verdict in comparison.verdicts}
    assert sum(value for name, value in by_name.items() if name not in ("ttft", "tpot")) == pytest.approx(
        by_name["ttft"]
    )
    assert words(comparison)["wire"] == WORSE
    assert words(comparison)["decode_queue"] == BETTER
    assert find_share_explained(comparison) == pytest.approx(1, abs=0.01)


def test_difference_below_the_uncertainty_of_the_landing_is_unresolved():
    effects = {"scale": {"wire": 1.3, "first_decode": 1.3}}
    clear = compare(make_requests(200, 3), 1, **effects)
    hazy = compare(make_requests(200, 3), 1, **effects, uncertainty_ms=20)
    assert words(clear)["wire"] == WORSE
    assert words(hazy)["wire"] == UNRESOLVED
    assert words(hazy)["first_decode"] == WORSE  # not at the landing: its own clock tells it


def test_few_requests_give_no_verdict():
    comparison = compare(make_requests(5, 3), 1, scale={"wire": 3.0})
    assert set(words(comparison).values()) == {TOO_FEW}


def test_identical_runs_differ_in_nothing():
    requests = make_requests(30, 3)
    comparison = compare_breakdowns(make_run(requests, 1), make_run(requests, 1))
    assert set(words(comparison).values()) == {NO_EVIDENCE}
    assert all(verdict.estimate.difference == 0 for verdict in comparison.verdicts)


def test_strata_adjust_for_another_mix_of_prompts():
    """B has only other prompts, no effect: the raw means differ by far, the stratified ones do not."""
    one, two = make_requests(300, 1), make_requests(300, 2)
    two["prompt_tokens"] = np.where(np.arange(300) % 5 == 0, 200, 3000)
    comparison = compare(one, 1, other=two, paired=False)
    raw = [side.budgets["ttft"].mean() for side in (make_run(one, 3), make_run(two, 4))]
    assert raw[1] > 1.2 * raw[0]
    assert words(comparison)["ttft"] == NO_EVIDENCE
    effect = compare(one, 1, other=two, paired=False, scale={"first_decode": 2.0})
    assert words(effect)["first_decode"] == WORSE


def test_comparison_is_repeatable():
    requests = make_requests(60, 1)
    first, second = (compare(requests, 1, scale={"wire": 1.2}) for _ in range(2))
    assert [v.estimate for v in first.verdicts] == [v.estimate for v in second.verdicts]


@pytest.mark.slow
def test_many_requests_take_normal_intervals():
    comparison = compare(make_requests(6000, 1), 1, scale={"wire": 1.05})
    named = {verdict.name: verdict for verdict in comparison.verdicts}
    assert named["wire"].word == WORSE
    assert named["wire"].estimate.low < named["wire"].estimate.difference < named["wire"].estimate.high


def test_batches_follow_the_correlation():
    rng = np.random.default_rng(1)
    assert measure_memory(rng.normal(size=500)) == FORGETFUL
    walk = rng.normal(size=500)
    for place in range(1, 500):
        walk[place] += 0.7 * walk[place - 1]
    memory = measure_memory(walk)
    assert memory.batch > 4
    assert 1 < memory.inflation < 2
    assert batch_means(np.arange(10.0), 5).tolist() == [2, 7]
    assert measure_memory(np.zeros(50)) == FORGETFUL


def test_holm_and_benjamini_hochberg():
    p = [0.01, 0.04, 0.03, 0.005]
    assert adjust(p, "holm") == pytest.approx([0.03, 0.06, 0.06, 0.02])  # Holm 1979, by hand
    assert adjust(p, "bh") == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert adjust(p, "none") == p
