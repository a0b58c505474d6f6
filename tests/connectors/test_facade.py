"""The facades around a small stock connector: same answers, whatever happens to the telemetry."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

import instrumented_connectors
from instrumented_connectors import compat, runtime
from instrumented_connectors import guard as guard_module
from instrumented_connectors.connectors import InstrumentedMixin
from instrumented_connectors.scheduler_lens import NullSchedulerLens, SchedulerLens


class Config:
    engine_id, kv_role = "P0", "kv_producer"

    def get_from_extra_config(self, name: str, default: Any) -> Any:
        return default


class SmallStock:
    """Scheduler half of a connector facade, as far as the mixin calls it."""

    connector_worker: Any = None

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self.calls: list[str] = []

    def on_new_request(self, request: Any) -> None:
        self.calls.append("on_new_request")

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 7, True

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        # Stock code fails like this on incomplete push parameters: the engine must see exactly that.
        if request.kv_transfer_params == {"broken": True}:
            raise KeyError("remote_engine_id")

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return SimpleNamespace(reqs_to_recv={})

    def update_connector_output(self, connector_output: Any) -> None:
        self.calls.append("update_connector_output")

    def request_finished(self, request: Any, block_ids: Any) -> tuple[bool, dict[str, Any]]:
        return True, {"remote_engine_id": "P0"}

    request_finished_all_groups = request_finished

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None: ...

    def get_kv_connector_stats(self) -> None:
        return None

    def shutdown(self) -> None: ...


class Facade(InstrumentedMixin, SmallStock):
    """What the real connectors are, over the small stock class."""


@pytest.fixture(autouse=True)
def _own_process_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("KVLENS_TRACES_DIR", str(tmp_path))
    monkeypatch.setattr(runtime, "_runtimes", {})
    yield
    for started in runtime._runtimes.values():
        started.assembler.stop()


def make_facade() -> Facade:
    return Facade(SimpleNamespace(kv_transfer_config=Config()), "scheduler", None)


REQUEST = SimpleNamespace(
    request_id="cmpl-r-0-aaaaaaaa", kv_transfer_params={"do_remote_decode": True}, num_prompt_tokens=8,
    num_computed_tokens=8, num_output_tokens=1, status=SimpleNamespace(name="FINISHED_STOPPED"), trace_headers=None,
)  # fmt: skip
OUTPUT = SimpleNamespace(num_scheduled_tokens={REQUEST.request_id: 8}, scheduled_new_reqs=[])
REPORT = SimpleNamespace(finished_recving=None, finished_sending={REQUEST.request_id})
BLOCKS = SimpleNamespace(blocks=([1, 2],))


def drive(facade: Facade) -> list[Any]:
    facade.on_new_request(REQUEST)
    answers: list[Any] = [
        facade.get_num_new_matched_tokens(REQUEST, 0),
        facade.update_state_after_alloc(REQUEST, BLOCKS, 7),
        facade.build_connector_meta(OUTPUT).reqs_to_recv,
        facade.request_finished_all_groups(REQUEST, ([1, 2],)),
        facade.get_kv_connector_stats(),
    ]
    facade.update_connector_output(REPORT)
    return [*answers, facade.calls]


STOCK_ANSWERS = [(7, True), None, {}, (True, {"remote_engine_id": "P0"}), None, [
    "on_new_request", "update_connector_output",
]]  # fmt: skip


def test_answers_are_the_stock_ones_and_everything_is_recorded(tmp_path: Path) -> None:
    facade = make_facade()
    assert drive(facade) == STOCK_ANSWERS
    facade.shutdown()
    text = "".join(file.read_text() for file in tmp_path.glob("*.jsonl"))
    assert all(f'"{name}"' in text for name in ("prefill", "prefill.queue", "prefill.compute", "lease"))


@pytest.mark.parametrize("broken", ["_record", "everything"])
def test_broken_telemetry_changes_nothing(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "reraise_under_pytest", False)
    facade = make_facade()
    if broken == "_record":

        def explode(_event: Any) -> None:
            raise MemoryError

        facade._scheduler_lens._record = explode  # type: ignore[attr-defined]
        assert drive(facade) == STOCK_ANSWERS
    else:
        # Requests that look like nothing we know: the stock class takes them, so must we.
        strange = SimpleNamespace(kv_transfer_params=["not", "a", "dict"])
        facade.on_new_request(strange)
        assert facade.get_num_new_matched_tokens(strange, 0) == (7, True)
        assert facade.request_finished(strange, None) == (True, {"remote_engine_id": "P0"})


def test_stock_exceptions_pass_through() -> None:
    request = SimpleNamespace(request_id="x", kv_transfer_params={"broken": True})
    with pytest.raises(KeyError, match="remote_engine_id"):
        make_facade().update_state_after_alloc(request, BLOCKS, 1)


@pytest.mark.parametrize("variable", [("KVLENS_DISABLED", "1"), ("OTEL_SDK_DISABLED", "true")])
def test_disabled_is_stock(variable: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(*variable)
    facade = make_facade()
    assert type(facade._scheduler_lens) is NullSchedulerLens
    assert drive(facade) == STOCK_ANSWERS
    assert runtime._runtimes == {}


def test_an_unknown_version_says_so_in_one_line_and_records(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(compat, "vllm_version", lambda: "0.99.1")
    with caplog.at_level(logging.WARNING):
        facade = make_facade()
    lines = [record.getMessage() for record in caplog.records if "0.99.1" in record.getMessage()]
    assert len(lines) == 1
    assert "0.24 to 0.32" in lines[0]
    assert type(facade._scheduler_lens) is SchedulerLens


def test_a_missing_seam_runs_stock(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "REQUIRED_FACADE", (*compat.REQUIRED_FACADE, "a_hook_that_went_away"))
    with caplog.at_level(logging.WARNING):
        facade = make_facade()
    assert type(facade._scheduler_lens) is NullSchedulerLens
    assert drive(facade) == STOCK_ANSWERS
    assert "a_hook_that_went_away" in caplog.text


def test_an_unwritable_directory_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVLENS_TRACES_DIR", "/proc/nowhere")
    facade = make_facade()
    assert drive(facade) == STOCK_ANSWERS
    facade.shutdown()


def test_the_real_classes_have_the_stock_names_and_every_seam() -> None:
    for name in ("NixlConnector", "NixlPullConnector", "NixlPushConnector", "NixlBidirectionalConnector"):
        # As vLLM loads them: from the package.
        cls = getattr(instrumented_connectors, name)
        assert cls.__name__ == name
        assert compat.missing(cls, compat.REQUIRED_FACADE) == []
    assert [version for version in ("0.23.9", "0.24.0", "0.32.5", "0.33.0", "") if compat.is_supported(version)] == [
        "0.24.0", "0.32.5",
    ]  # fmt: skip
