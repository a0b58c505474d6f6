"""An engine that lives as if on another host: what the options mean, what its processes read, and the way back."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner

from analysis.compare.conditions import diff_conditions
from lab.cli import lab
from lab.engine import Engine, EngineSpec, build_environment
from lab.errors import LabError
from lab.host_clock import HostClock, OtherHost, make_host, parse_clock
from lab.layout import make_specs
from lab.other_host import make_clocks
from lab.true_clocks import TrueClocks, restore_clocks, to_own_perf, to_own_unix

CLOCK = HostClock(-120.0, 40.0)
S = 10**9
EPOCH = 1_790_000_000 * S


def spec(tmp_path: Path, host: OtherHost | None) -> EngineSpec:
    return EngineSpec(
        role="prefill", id="P0", mode="pull", port=8100, side_channel_port=5600, model=tmp_path, log=tmp_path / "log",
        host=host,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("+300ms", HostClock(300.0)),
        ("-120ms,40ppm", CLOCK),
        ("40ppm, -120 ms", CLOCK),
        ("-.5s", HostClock(-500.0)),
        ("20us,-7.5ppm", HostClock(0.02, -7.5)),
        ("50ppm", HostClock(0.0, 50.0)),
    ],
)
def test_clock_as_written(text: str, clock: HostClock) -> None:
    assert parse_clock(text) == clock


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["D0=300"], "'300' is no offset and no drift"),
        (["D0"], "D0=+300ms"),
        (["D0=+1ms,2ms"], "two of offset_ms"),
        (["D0=+1ms", "D0=2ms"], "two clocks for D0"),
        (["D0=nanms"], "no offset"),
        (["D0=9000s"], "cannot be off by"),
        (["P0=2000ppm"], "use -1,000 to 1,000 ppm"),
        (["D1=+1ms"], "use one of: P0, D0"),
        (["=+1ms"], "'', which is no engine"),
    ],
)
def test_clock_that_cannot_be_meant_is_a_usage_error(arguments: list[str], said: str, tmp_path: Path) -> None:
    options = [part for one in arguments for part in ("--clock", one)]
    result = CliRunner().invoke(lab, ["run", "--out", str(tmp_path / "run"), *options])
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())
    assert "Try:" in result.output
    assert not (tmp_path / "run").exists()


def test_help_has_an_example() -> None:
    assert "--clock D0=+300ms" in CliRunner().invoke(lab, ["run", "--help"]).output


def test_clocks_of_the_other_host() -> None:
    host = OtherHost(
        -120.0, 40.0, zero_unix_ns=1_000 * S, zero_perf_ns=5 * S, perf_ahead_ns=7 * S, boot_id="b", name="n"
    )
    perf = 5 * S + 100 * S
    clocks = make_clocks(host, lambda: 1_100 * S, lambda: perf)
    gain = 100 * S * 40 // 10**6
    assert clocks["time"]() == 1_100 * S - 120_000_000 + gain
    assert clocks["perf_counter"]() == perf + 7 * S + gain
    assert to_own_unix(host, clocks["time"]()) == pytest.approx(1_100 * S, abs=1)
    assert to_own_perf(host, clocks["perf_counter"]()) == pytest.approx(perf, abs=1)


def test_time_never_runs_backwards() -> None:
    now = iter(range(10**15, 10**15 + 2000))
    host = OtherHost(0.0, -999.9, zero_unix_ns=0, zero_perf_ns=10**14, perf_ahead_ns=3, boot_id="b", name="n")
    read = make_clocks(host, lambda: 0, lambda: next(now))["perf_counter"]
    stamps = [read() for _ in range(1000)]
    assert stamps == sorted(stamps)


CHILD = """
import json, os, time
own = time.time_ns(), time.perf_counter_ns()
from lab import plugin
plugin._move_to_host()
plugin._move_to_host()
from instrumented_connectors.clock import Clock
clock = Clock()
print(json.dumps({
    "own": own, "wall": time.time_ns(), "perf": time.perf_counter_ns(), "seconds": [time.time(), time.perf_counter()],
    "anchor": [clock.anchor_unix_ns, clock.anchor_perf_ns], "boot": clock.boot_id,
    "attributes": os.environ["OTEL_RESOURCE_ATTRIBUTES"], "spent": time.monotonic_ns() - own[1],
}))
"""


def test_process_reads_the_other_hosts_clocks_and_so_does_kvlens(tmp_path: Path) -> None:
    host = make_host(CLOCK, "host-of-P0")
    env = build_environment(spec(tmp_path, host))
    done = subprocess.run([sys.executable, "-c", CHILD], env=env, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)
    spent = found["spent"]
    wall, perf = found["wall"] - found["own"][0], found["perf"] - found["own"][1]
    drift = (found["own"][1] - host.zero_perf_ns) * 40 // 10**6
    assert wall == pytest.approx(-120_000_000 + drift + spent / 2, abs=spent / 2 + 1e6)
    assert perf == pytest.approx(host.perf_ahead_ns + drift + spent / 2, abs=spent / 2 + 1e6)
    assert found["seconds"] == pytest.approx([found["wall"] / 1e9, found["perf"] / 1e9], abs=spent / 1e9)
    assert found["boot"] == host.boot_id
    assert found["attributes"] == "host.name=host-of-P0"
    # Where kvlens anchors is what a restored run is aligned by.
    unix, stamp = found["anchor"]
    assert to_own_unix(host, unix) - to_own_perf(host, stamp) == pytest.approx(
        time.time_ns() - time.perf_counter_ns(), abs=5e6
    )


def test_kvlens_that_was_loaded_before_is_refused(tmp_path: Path) -> None:
    env = build_environment(spec(tmp_path, make_host(CLOCK, "host-of-P0")))
    child = "import instrumented_connectors.clock\nfrom lab import plugin\nplugin._move_to_host()"
    done = subprocess.run([sys.executable, "-c", child], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "loaded before its process got another clock" in done.stderr


def test_environment_keeps_what_the_caller_says_of_the_host(tmp_path: Path) -> None:
    host = make_host(CLOCK, "host-of-P0")
    said = {"OTEL_RESOURCE_ATTRIBUTES": "team=a"}
    assert build_environment(spec(tmp_path, host), said)["OTEL_RESOURCE_ATTRIBUTES"] == "team=a,host.name=host-of-P0"
    said = {"OTEL_RESOURCE_ATTRIBUTES": "host.name=mine"}
    assert build_environment(spec(tmp_path, host), said)["OTEL_RESOURCE_ATTRIBUTES"] == "host.name=mine"
    assert "KVLENS_LAB_HOST" not in build_environment(spec(tmp_path, None), {})
    assert OtherHost.from_environment(host.to_environment({})) == host


def test_engines_named_get_hosts_of_their_own(tmp_path: Path) -> None:
    shared = {"mode": "push", "model": tmp_path, "tensor_parallel": 1}
    specs = make_specs(shared, None, 2, set(), tmp_path, clocks={"D1": "+300ms", "P0": CLOCK})
    hosts = {one.id: one.host for one in specs}
    assert hosts["D0"] is None
    assert (hosts["P0"].offset_ms, hosts["P0"].drift_ppm, hosts["D1"].offset_ms) == (-120.0, 40.0, 300.0)
    assert len({hosts[name].boot_id for name in ("P0", "D1")}) == 2
    with pytest.raises(LabError, match="no engine"):
        make_specs(shared, None, 1, set(), tmp_path, clocks={"D1": "+300ms"})


def test_comparison_names_the_clock_as_a_condition_and_nothing_else(tmp_path: Path) -> None:
    def describe(host: OtherHost | None) -> dict[str, object]:
        return {"engines": [Engine(spec(tmp_path, host)).describe()]}

    plain, wrong, again = describe(None), *(describe(make_host(CLOCK, "host-of-P0")) for _ in range(2))
    differences = {one.key: (one.a, one.b) for one in diff_conditions(plain, wrong)}
    assert differences == {
        "engines.prefill0.clock.offset_ms": (None, -120.0),
        "engines.prefill0.clock.drift_ppm": (None, 40.0),
    }
    assert diff_conditions(wrong, again) == []


def write_run(folder: Path, host: OtherHost | None) -> Path:
    """A run of a span of an engine (maybe on another host) and one of the router, all at the same true moments."""
    own = OtherHost(0.0, 0.0, 0, 0, 0, "own", "own")
    (folder / "traces").mkdir(parents=True)
    manifest = {"engines": [{"id": "P0", "clock": asdict(host) if host else None}, {"id": "D0", "clock": None}]}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    for engine, place in (("P0", host or own), ("router", own)):
        wall, perf = EPOCH + 100 * S, 103 * S
        clocks = make_clocks(place, lambda wall=wall: wall, lambda perf=perf: perf)
        unix, stamp = clocks["time"](), clocks["perf_counter"]()
        attributes = {
            "service.instance.id": {"stringValue": engine}, "kvlens.clock.boot_id": {"stringValue": place.boot_id},
            "kvlens.clock.anchor_unix_ns": {"intValue": str(unix)},
            "kvlens.clock.anchor_perf_ns": {"intValue": str(stamp)},
        }  # fmt: skip
        span = {
            "startTimeUnixNano": str(unix), "endTimeUnixNano": str(unix),
            "attributes": [
                {"key": "kv_transfer.landed_after_ns", "value": {"intValue": str(unix)}},
                {"key": "kv_transfer.prep_ns", "value": {"intValue": "500"}},
            ],
        }  # fmt: skip
        resource = {"attributes": [{"key": key, "value": value} for key, value in attributes.items()]}
        batch = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [span]}]}]}
        (folder / "traces" / f"{engine}.otlp.jsonl").write_text(json.dumps(batch) + "\n")
    return folder


def test_restored_run_is_what_one_host_would_have_recorded(tmp_path: Path) -> None:
    host = OtherHost(431.5, -37.0, EPOCH, 3 * S, 77 * S, "other", "host-of-P0")
    restored = restore_clocks(write_run(tmp_path / "wrong", host), tmp_path / "right")
    expected = write_run(tmp_path / "own", None)
    for name in ("P0", "router"):
        file = f"traces/{name}.otlp.jsonl"
        assert (restored / file).read_text() == (expected / file).read_text()


def test_true_clocks_show_what_every_clock_showed(tmp_path: Path) -> None:
    host = OtherHost(431.5, -37.0, EPOCH, 3 * S, 77 * S, "other", "host-of-P0")
    truth = TrueClocks(write_run(tmp_path / "wrong", host))
    assert truth.boots == ["other", "own"]
    moment = 4_003 * S
    own = EPOCH + 4_000 * S
    assert truth.read("own", moment) == own
    assert truth.read("other", moment) == own + 431_500_000 - 4_000 * 37_000
    for boot in truth.boots:
        assert truth.find_moment(boot, truth.read(boot, moment)) == pytest.approx(moment, abs=500)


def test_run_without_wrong_clocks_has_nothing_to_restore(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="no engine"):
        restore_clocks(write_run(tmp_path / "run", None), tmp_path / "right")
