"""Whatever is lost, skewed or torn: segments + residual = TTFT, nothing is negative, no request is counted twice."""

import random
from dataclasses import fields

import pytest
from span_builder import MS, Request, Times, World, add_request, pull_times, push_times

SEGMENTS = (
    "route", "prefill_ingress", "prefill_queue", "prefill_compute", "handoff_dispatch", "decode_admission",
    "registration", "d_ingress", "dispatch", "post", "wire", "completion_lag", "decode_queue", "first_decode",
    "delivery",
)  # fmt: skip


def draw_world(draw: random.Random, mode: str, count: int) -> World:
    """Draw requests with random durations, some killed at a random milestone, on processes with random anchors."""
    boots = {name: draw.choice(["boot-1", "boot-2"]) for name in ("router", "prefill", "decode")}
    skews = {name: draw.randrange(-30, 30) * MS for name in boots}
    world = World(mode, ranks=draw.choice([1, 2, 4]), boots=boots, skews=skews)
    make = pull_times if mode == "pull" else push_times
    for number in range(count):
        durations = {name: draw.choice([0, 0.001, draw.uniform(0, 5), draw.uniform(0, 300)]) for name in SEGMENTS}
        times, _ = make(draw.randrange(60_000) * MS, **durations)
        spread = draw.choice([0.01, 1, 40])
        times.landed_after = max(times.posted, times.landed - round(draw.uniform(0, spread) * MS))
        times.landed_before = min(times.told, times.landed + round(draw.uniform(0, spread) * MS))
        if draw.random() < 0.1:
            cut_short(times, draw.choice([field.name for field in fields(Times)][5:-1]))
        request = Request(
            f"r{number if draw.random() < 0.9 else 0}", suffix=f"{draw.randrange(1 << 32):08x}",
            bytes=draw.randrange(1 << 24), prompt_tokens=draw.randrange(1, 20_000),
        )  # fmt: skip
        add_request(
            world, request, times, router=draw.random() < 0.9, prefill=draw.random() < 0.9, decode=draw.random() < 0.9,
            slow_rank=draw.randrange(world.ranks), slow_ns=draw.randrange(5 * MS), dead_decode=times.end is None,
        )  # fmt: skip
    for _ in range(10):
        at, length = draw.randrange(60_000) * MS, draw.randrange(200) * MS
        pair = draw.sample([world.prefill, world.decode], 2)
        world.handshake(*pair, at, at + length, rank=draw.randrange(world.ranks))
    return world


def cut_short(times: Times, milestone: str) -> None:
    names = [field.name for field in fields(Times)]
    for name in names[names.index(milestone) :]:
        setattr(times, name, None)
    if times.posted is None:
        times.post = None


def lose_spans(draw: random.Random, world: World, share: float) -> None:
    for process in (world.router, world.prefill, world.decode):
        process.spans = [span for span in process.spans if draw.random() >= share]
        draw.shuffle(process.spans)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["pull", "push"])
def test_budgets_are_conserved(analyse, mode, seed):
    draw = random.Random(f"{mode} {seed}")
    world = draw_world(draw, mode, 250)
    lose_spans(draw, world, share=0.15 if seed % 2 else 0.0)
    document = analyse(world)
    assert len(document["requests"]) > 150
    for row in document["requests"]:
        charged = sum(row["segments"].values())
        assert charged + row["residual_ms"] == pytest.approx(row["ttft_ms"], abs=1e-6), row
        assert min([row["residual_ms"], row["disorder_ms"], row["uncertainty_ms"], *row["hidden"].values()]) >= -1e-9, (
            row
        )
        assert min(row["segments"].values(), default=0) >= -1e-9, row
    engines = [row[side] for row in document["requests"] + document["unfinished"] if not row.get("missing")
               for side in ("prefill_request_id", "decode_request_id")]  # fmt: skip
    listed = {row["request_id"] for row in document["unfinished"]} & {row["request_id"] for row in document["requests"]}
    assert len(engines) - len(set(engines)) <= 2 * len(listed)


def test_order_of_files_and_lines_does_not_matter(analyse, tmp_path):
    draw = random.Random(7)
    world = draw_world(draw, "push", 40)
    first = analyse(world)
    for path in (tmp_path / "run" / "traces").iterdir():
        lines = path.read_text().splitlines()
        draw.shuffle(lines)
        path.unlink()
        (path.parent / f"{draw.randrange(1000)}.jsonl").write_text("\n".join(lines) + "\n")
    again = analyse()
    assert again["requests"] == first["requests"]
    assert again["unfinished"] == first["unfinished"]
