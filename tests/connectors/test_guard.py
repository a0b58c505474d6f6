import pytest

from instrumented_connectors import guard as module
from instrumented_connectors.guard import guard, guarded


@pytest.fixture
def in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "reraise_under_pytest", False)
    module.errors.clear()


@guarded
def break_telemetry() -> int:
    raise ZeroDivisionError


def test_failures_are_swallowed_counted_and_logged_once(in_production: None, caplog: pytest.LogCaptureFixture) -> None:
    assert break_telemetry() is None
    assert break_telemetry() is None
    with guard("here"):
        raise ZeroDivisionError
    assert dict(module.errors) == {"break_telemetry": 2, "here": 1}
    assert len(caplog.records) == 2


def test_our_own_tests_see_failures() -> None:
    with pytest.raises(ZeroDivisionError):
        break_telemetry()


def test_the_engines_end_is_not_swallowed(in_production: None) -> None:
    with pytest.raises(KeyboardInterrupt), guard("here"):
        raise KeyboardInterrupt
