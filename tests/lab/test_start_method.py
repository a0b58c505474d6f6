"""An engine of the lab forks its processes, though vLLM would spawn them on CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lab.engine import EngineSpec, build_environment
from lab.start_method import ENV_METHOD, keep_start_method


class Platform:
    """A platform that insists on spawn."""

    seen: ClassVar[list[Any]] = []

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        cls.seen.append(vllm_config)
        os.environ[ENV_METHOD] = "spawn"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_was_set_stays(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENV_METHOD, method)
    platform = type("Own", (Platform,), {"seen": []})
    keep_start_method(platform, method)
    keep_start_method(platform, method)
    platform.check_and_update_config("config")
    assert os.environ[ENV_METHOD] == method
    assert platform.seen == ["config"]


def test_stock_insists_on_spawn() -> None:
    """What this is there for; when this fails, vLLM has changed and it may go."""
    cpu = pytest.importorskip("vllm.platforms.cpu")
    assert f'os.environ["{ENV_METHOD}"] = "spawn"' in Path(cpu.__file__).read_text(encoding="utf-8")


def test_the_lab_forks_unless_told_otherwise(tmp_path: Path) -> None:
    spec = {"role": "decode", "id": "D0", "mode": "pull", "port": 1, "side_channel_port": 2, "model": tmp_path,
            "log": tmp_path / "log"}  # fmt: skip
    assert build_environment(EngineSpec(**spec), {ENV_METHOD: "spawn"})[ENV_METHOD] == "fork"
    assert build_environment(EngineSpec(**spec, env={ENV_METHOD: "spawn"}), {})[ENV_METHOD] == "spawn"
