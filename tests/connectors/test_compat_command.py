import json

import pytest
from click.testing import CliRunner

from instrumented_connectors import compat
from instrumented_connectors.compat_command import command


def test_this_environment_records_everything() -> None:
    pytest.importorskip("vllm")
    result = CliRunner().invoke(command, ["--json"])
    document = json.loads(result.output)
    assert result.exit_code == 0
    assert document["records"]
    assert all(check["found"] for check in document["checks"])


def test_a_missing_hook_is_named_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "REQUIRED_FACADE", (*compat.REQUIRED_FACADE, "a_hook_that_went_away"))
    result = CliRunner().invoke(command)
    assert result.exit_code == 1
    assert "a_hook_that_went_away" in result.output


def test_without_vllm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "CONNECTOR_MODULES", ("no_such_module",))
    monkeypatch.setattr(compat, "WORKER_MODULES", ())
    result = CliRunner().invoke(command, ["--json"])
    document = json.loads(result.output)
    assert (result.exit_code, document["records"]) == (1, False)
    assert "install vLLM" in document["checks"][0]["note"]
