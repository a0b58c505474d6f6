"""The fault file is followed while a process runs, and each site delays what it says it delays."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.agent_faults import delay_post, delay_wire, fail_transfer
from lab.errors import LabError
from lab.fault_sites import delay_admission, delay_model_execution, withhold_finished_reads
from lab.faults import SITES, Fault, FaultFile, write_faults
from lab.stock_fixes import offer_once


class ManualTime:
    """A clock that only moves when told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if seconds:
            self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualTime:
    manual = ManualTime()
    for module in ("lab.fault_sites", "lab.agent_faults"):
        monkeypatch.setattr(f"{module}.time", manual)
    return manual


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "faults.json"


def follow(path: Path, *names: str) -> FaultFile:
    return FaultFile(path, names, check_interval_ns=0)


def test_file_is_followed_as_it_changes(path: Path) -> None:
    faults = follow(path)
    assert faults.delay_s("wire") == 0
    write_faults(path, {"wire": 80})
    assert faults.delay_s("wire") == pytest.approx(0.08)
    write_faults(path, {"wire": 90})
    assert faults.delay_s("wire") == pytest.approx(0.09)
    write_faults(path, {})
    assert faults.delay_s("wire") == 0
    write_faults(path, {"post": 10})
    path.unlink()
    assert faults.delay_s("post") == 0


def test_change_within_the_check_interval_is_seen_after_it(path: Path) -> None:
    faults = FaultFile(path, check_interval_ns=20_000_000)
    assert not faults.is_on("wire")
    write_faults(path, {"wire": 80})
    time.sleep(0.03)
    assert faults.is_on("wire")


@pytest.mark.parametrize(
    ("engine", "expected"), [(None, True), ("decode", True), ("D1", True), ("prefill", False), ("D0", False)]
)
def test_engine_is_a_role_or_an_id(path: Path, engine: str | None, expected: bool) -> None:
    write_faults(path, {"post": Fault(50, engine=engine)})
    assert bool(follow(path, "decode", "D1").delay_s("post")) is expected


def test_rank_limits_a_fault(path: Path) -> None:
    write_faults(path, {"wire": {"ms": 50, "rank": 1}})
    faults = follow(path)
    assert [bool(faults.delay_s("wire", rank)) for rank in (0, 1, None)] == [False, True, True]


def test_every_lets_each_nth_occurrence_through(path: Path) -> None:
    write_faults(path, {"wire": {"ms": 50, "every": 3}})
    faults = follow(path)
    assert [bool(faults.delay_s("wire")) for _ in range(6)] == [False, False, True, False, False, True]


@pytest.mark.parametrize("content", ["{", "[]", '{"nowhere": {"ms": 1}}', '{"wire": {"ms": -1}}', '{"wire": {"x": 1}}'])
def test_file_that_cannot_be_read_means_no_faults(path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    path.write_text(content)
    assert follow(path).delay_s("wire") == 0
    assert str(path) in caplog.text


@pytest.mark.parametrize("faults", [{"nowhere": 1}, {"wire": 0}, {"wire": {"ms": 1, "who": 2}}, {"wire": "soon"}])
def test_writing_refuses_what_cannot_be_meant(path: Path, faults: dict[str, Any]) -> None:
    with pytest.raises(LabError) as error:
        write_faults(path, faults)
    assert error.value.remedy
    assert not path.exists()


def test_file_has_the_documented_form(path: Path) -> None:
    write_faults(path, {"wire": Fault(80, engine="prefill")})
    assert json.loads(path.read_text()) == {"wire": {"ms": 80, "engine": "prefill", "rank": None, "every": 1}}


def test_every_site_is_documented() -> None:
    assert len(SITES) == 13
    assert all(SITES.values())


class Agent:
    """Stands for a NIXL agent: transfers are done as soon as they are submitted."""

    def __init__(self) -> None:
        self.submitted: list[int] = []

    def transfer(self, handle: int) -> str:
        self.submitted.append(handle)
        return "PROC"

    def check_xfer_state(self, handle: int) -> str:
        return "DONE" if handle in self.submitted else "ERR"

    def get_xfer_telemetry(self, handle: int) -> Any:
        return SimpleNamespace(startTime=0, postDuration=5, xferDuration=10, totalBytes=1, descCount=1)

    def release_xfer_handle(self, handle: int) -> None:
        pass


def patched_agent(*sites: Any, faults: FaultFile) -> type[Agent]:
    owner = type("PatchedAgent", (Agent,), dict(vars(Agent)))
    for site in sites:
        site(owner, faults)
    return owner


def test_wire_fault_submits_late_and_says_so_in_nixls_figures(path: Path, clock: ManualTime) -> None:
    write_faults(path, {"wire": 50})
    agent = patched_agent(delay_post, delay_wire, faults=follow(path))()
    assert agent.transfer(7) == "PROC"
    clock.now += 0.049
    assert agent.check_xfer_state(7) == "PROC"
    assert agent.submitted == []
    clock.now += 0.002
    assert agent.check_xfer_state(7) == "DONE"
    assert agent.get_xfer_telemetry(7).xferDuration == 50_010
    agent.release_xfer_handle(7)
    assert agent.get_xfer_telemetry(7).xferDuration == 10


def test_wire_fault_leaves_a_transfer_of_before_alone(path: Path) -> None:
    agent = patched_agent(delay_wire, faults=follow(path))()
    agent.transfer(7)
    write_faults(path, {"wire": 5000})
    assert agent.check_xfer_state(7) == "DONE"
    agent.transfer(8)
    agent.release_xfer_handle(8)
    agent.submitted.append(8)
    assert agent.check_xfer_state(8) == "DONE"


def test_post_fault_blocks_the_submission(path: Path, clock: ManualTime) -> None:
    write_faults(path, {"post": 50})
    agent = patched_agent(delay_post, faults=follow(path))()
    agent.transfer(1)
    assert clock.slept == [0.05]
    assert agent.submitted == [1]


def test_failed_transfer_is_never_submitted(path: Path, clock: ManualTime) -> None:
    write_faults(path, {"transfer_error": {"ms": 50, "engine": "prefill", "every": 2}})
    agent = patched_agent(fail_transfer, faults=follow(path, "prefill"))()
    agent.transfer(1)
    with pytest.raises(RuntimeError, match="injected"):
        agent.transfer(2)
    assert (agent.submitted, clock.slept) == ([1], [0.05])
    patched_agent(fail_transfer, faults=follow(path, "decode"))().transfer(1)


class Scheduler:
    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 32 - num_computed_tokens, True


def test_admission_fault_answers_not_yet_from_the_first_question_on(path: Path, clock: ManualTime) -> None:
    write_faults(path, {"decode_admission": 50})
    delay_admission(Scheduler, follow(path, "decode"))
    scheduler = Scheduler()
    request = SimpleNamespace(kv_transfer_params={"do_remote_prefill": True})
    local = SimpleNamespace(kv_transfer_params=None)
    assert scheduler.get_num_new_matched_tokens(request, 0) == (None, False)
    assert scheduler.get_num_new_matched_tokens(local, 0) == (32, True)
    clock.now += 0.06
    assert scheduler.get_num_new_matched_tokens(request, 0) == (32, True)


class Worker:
    """Reports one finished read, then nothing."""

    def __init__(self, failed: set[str]) -> None:
        self.finished, self.failed = {"a", "b"}, failed

    def get_transfer_results(self) -> Any:
        finished, self.finished = self.finished, set()
        return SimpleNamespace(finished_recving=finished, failed_recving=self.failed, finished_sending=set())


def test_completion_fault_reports_finished_reads_later_but_failures_at_once(path: Path, clock: ManualTime) -> None:
    write_faults(path, {"completion": 50})
    withhold_finished_reads(Worker, follow(path))
    worker = Worker(failed={"b"})
    assert worker.get_transfer_results().finished_recving == {"b"}
    assert worker.get_transfer_results().finished_recving == set()
    clock.now += 0.06
    assert worker.get_transfer_results().finished_recving == {"a"}


class ModelWorker:
    def execute_model(self, scheduler_output: Any) -> str:
        return "output"


@pytest.mark.parametrize(
    ("site", "role", "step", "expected"),
    [
        ("prefill_compute", "prefill", {"new": 0, "tokens": 100}, True),
        ("prefill_compute", "prefill", {"new": 0, "tokens": 0}, False),
        ("prefill_compute", "decode", {"new": 1, "tokens": 100}, False),
        ("first_decode", "decode", {"new": 1, "tokens": 1}, True),
        ("first_decode", "decode", {"new": 0, "tokens": 5}, False),
        ("first_decode", "prefill", {"new": 1, "tokens": 5}, False),
    ],
)
def test_model_faults_hit_the_steps_that_they_name(
    path: Path, clock: ManualTime, *, site: str, role: str, step: dict[str, int], expected: bool
) -> None:
    write_faults(path, {site: 50})
    owner = type("PatchedWorker", (ModelWorker,), dict(vars(ModelWorker)))
    delay_model_execution(owner, follow(path, role))
    output = SimpleNamespace(total_num_scheduled_tokens=step["tokens"], scheduled_new_reqs=[None] * step["new"])
    assert owner().execute_model(output) == "output"
    assert clock.slept == ([0.05] if expected else [])


def test_readback_is_offered_until_it_has_been_tried() -> None:
    owner = type("Once", (Scheduler,), dict(vars(Scheduler)))
    offer_once(owner)
    offer_once(owner)
    params = {"do_remote_decode": True}
    request = SimpleNamespace(kv_transfer_params=params)
    assert owner().get_num_new_matched_tokens(request, 0) == (32, True)
    params["_remote_blocks_processed"] = True
    assert owner().get_num_new_matched_tokens(request, 0) == (0, False)
    params["do_remote_decode"] = False
    assert owner().get_num_new_matched_tokens(request, 0) == (32, True)
    assert owner().get_num_new_matched_tokens(SimpleNamespace(kv_transfer_params=None), 0) == (32, True)
