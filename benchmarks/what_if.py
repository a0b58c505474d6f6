"""What-if against the lab: push predicted from pull runs and pull from push runs, beside what was then measured.

Runs are taken from KVLENS_WHAT_IF_RUNS (default runs/what-if) and recorded there when missing, about two minutes each;
the machine should have nothing else to do meanwhile, as other work slows the engines by an amount that no run shows.
The published push / pull table is simulated too, from the parameters in analysis/whatif/p5en.py.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from analysis.breakdown import break_down
from analysis.source import open_session
from analysis.whatif.calibrate import calibrate, list_jobs
from analysis.whatif.document import describe, find_replay_error
from analysis.whatif.observations import observe
from analysis.whatif.p5en import make_jobs, make_parameters
from analysis.whatif.parameters import PULL, PUSH, Arrangement
from analysis.whatif.predict import Prediction, predict
from analysis.whatif.replay import replay, replay_often

OTHER = {PULL: PUSH, PUSH: PULL}
SEED, REPLAYS = 11, 8
POINTS = ("p50", "p90")
GRID_TOKENS, GRID_RATES, GRID_REQUESTS, GRID_SEEDS = (1024, 4096, 16_384), (1.0, 4.0, 8.0), 200, 3


@dataclass(frozen=True)
class Load:
    """A workload of the lab."""

    requests: int
    rate: float
    lengths: str

    def list_arguments(self) -> list[str]:
        """Arguments of `kvlens lab run`."""
        numbers = ["--requests", str(self.requests), "--rate", str(self.rate), "--input-lens", self.lengths]
        return [*numbers, "--output-len", "32", "--seed", str(SEED)]


LOADS = {
    "light": Load(40, 0.6, "200,500,1000"),
    "heavy": Load(60, 1.2, "500,1000,1500"),
    "mixed": Load(50, 0.8, "100,300,1000,3000"),
}


def run() -> None:
    """Record what is missing, print both tables."""
    folder = Path(os.environ.get("KVLENS_WHAT_IF_RUNS", "runs/what-if"))
    for name, load in LOADS.items():
        for mode in OTHER:
            record(folder / f"{name}-{mode}", mode, load)
    errors = [error for name in LOADS for mode in OTHER for error in compare(folder, name, mode)]
    print(f"  error of the prediction: median {statistics.median(errors):.0%}, largest {max(errors):.0%} (size of it)")
    print_grid()


def record(path: Path, mode: str, load: Load) -> None:
    """Record one run unless it is there."""
    if (path / "client.jsonl").exists():
        return
    print(f"  recording {path}", file=sys.stderr)
    command = [
        sys.executable,
        "-c",
        "from analysis.cli import main; main()",
        "lab",
        "run",
        "--mode",
        mode,
        "--out",
        str(path),
    ]
    subprocess.run([*command, *load.list_arguments()], check=True, stdout=subprocess.DEVNULL)


def compare(folder: Path, name: str, mode: str) -> list[float]:
    """Print one prediction beside the measurement; returns the sizes of its relative errors at p50 and p90."""
    prediction, measured = predict_other(folder, name, mode), measure(folder / f"{name}-{OTHER[mode]}")
    rows = prediction.requests
    recorded, predicted = describe(rows["recorded_ttft"]), describe(rows["predicted_ttft"])
    simulated, replayed = describe(rows["other_ttft"]), find_replay_error(rows, "ttft")
    same = simulate_with_costs_of(folder, name, mode)
    print(f"  {name}: {mode} -> {OTHER[mode]}")
    for point in POINTS:
        error, alone, left = (one[point] / measured[point] - 1 for one in (predicted, simulated, same))
        print(
            f"    TTFT {point} recorded {recorded[point]:5.0f}  predicted {predicted[point]:5.0f}  "
            f"measured {measured[point]:5.0f} ms  error {error:+5.0%}  (simulated alone {alone:+5.0%}, "
            f"with the measured run's step costs {left:+5.0%}, replay of {mode} {replayed[point]:+5.0%})"
        )
    tpot = [describe(rows[f"{view}_tpot"])["p50"] for view in ("recorded", "predicted")]
    print(f"    TPOT p50 recorded {tpot[0]:5.1f}  predicted {tpot[1]:5.1f}  measured {measured['tpot']:5.1f} ms")
    return [abs(predicted[point] / measured[point] - 1) for point in POINTS]


def simulate_with_costs_of(folder: Path, name: str, mode: str) -> dict[str, float]:
    """TTFT of the other mode (ms), simulated from a run but with the costs of steps that the other run had.

    The machine is not equally fast in two runs, which no prediction can know: what is left is the model's own error.
    """
    found = {}
    for one in OTHER:
        with open_session([folder / f"{name}-{one}"]) as session:
            observed = observe(session, break_down(session))
        parameters = calibrate(observed)
        found[one] = parameters, list_jobs(observed, parameters)
    (own, _), (other, jobs) = found[mode], found[OTHER[mode]]
    mixed = replace(own, prefill=other.prefill, decode=other.decode, contention=other.contention)
    replays = replay_often(jobs, mixed, Arrangement(OTHER[mode]), range(REPLAYS))
    means = pl.concat([one.requests for one in replays]).group_by("index").agg(pl.col("ttft").mean())
    return describe(means["ttft"])


def predict_other(folder: Path, name: str, mode: str) -> Prediction:
    """Predict the other mode from a run."""
    with open_session([folder / f"{name}-{mode}"]) as session:
        breakdown = break_down(session)
        observed = observe(session, breakdown)
    return predict(breakdown, observed, Arrangement(OTHER[mode]), seed=1, replays=REPLAYS, limit=10_000)


def measure(path: Path) -> dict[str, float]:
    """TTFT percentiles (ms) of a run, and tpot, the median TPOT."""
    with open_session([path]) as session:
        budgets = break_down(session).budgets
    return {**describe(budgets["ttft"] * 1e-9), "tpot": describe(budgets["tpot_ns"] * 1e-9)["p50"]}


def print_grid() -> None:
    """Print the published grid as the model has it: medians of TTFT and TPOT, pull and push."""
    print("  Qwen3-32B on P5en from stated parameters, medians in ms")
    print("  (published at 16k tokens and 8/s: TTFT 1744 pull, 540 push; TPOT 10.4 pull, 7 push; equal at low load)")
    for tokens in GRID_TOKENS:
        for rate in GRID_RATES:
            pull, push = (simulate(mode, tokens, rate) for mode in (PULL, PUSH))
            print(
                f"    {tokens:6d} tokens {rate:3.0f}/s  TTFT pull {pull[0]:6.0f} push {push[0]:6.0f}   "
                f"TPOT pull {pull[1]:5.1f} push {push[1]:5.1f}"
            )


def simulate(mode: str, tokens: int, rate: float) -> list[float]:
    """Median TTFT and TPOT (ms) of one point of the grid, the median over seeds."""
    rows = [
        replay(make_jobs(tokens, rate, GRID_REQUESTS, seed), make_parameters(mode), Arrangement(mode), seed).requests
        for seed in range(GRID_SEEDS)
    ]
    return [statistics.median(one[kind].median() for one in rows) * 1e3 for kind in ("ttft", "tpot")]
