"""An engine of the lab forks its processes, though vLLM would spawn them on CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lab import plugin
from lab.engine import Engine, EngineSpec, build_environment
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


def test_the_plugin_hands_the_setting_to_vllms_platform(monkeypatch: pytest.MonkeyPatch) -> None:
    platforms = pytest.importorskip("vllm.platforms")
    kept: list[tuple[type, str]] = []
    monkeypatch.setattr("lab.start_method.keep_start_method", lambda *given: kept.append(given))
    monkeypatch.setenv("KVLENS_LAB", "1")
    for part in ("_move_to_host", "_replace_sched_yield", "_slow_progress_thread", "_leave_cores_alone"):
        monkeypatch.setattr(plugin, part, lambda: None)
    for name in ("FAULT_FILE", "STREAM_PARAMS", "READBACK_ONCE", "CACHE_USAGE"):
        monkeypatch.delenv(f"KVLENS_LAB_{name}", raising=False)
    monkeypatch.delenv(ENV_METHOD, raising=False)
    plugin.register()
    monkeypatch.setenv(ENV_METHOD, "fork")
    plugin.register()
    assert kept == [(type(platforms.current_platform), "fork")]


def test_stock_insists_on_spawn() -> None:
    """What this is there for; when this fails, vLLM has changed and it may go."""
    cpu = pytest.importorskip("vllm.platforms.cpu")
    assert f'os.environ["{ENV_METHOD}"] = "spawn"' in Path(cpu.__file__).read_text(encoding="utf-8")


def test_the_lab_forks_unless_told_otherwise(tmp_path: Path) -> None:
    spec = {"role": "decode", "id": "D0", "mode": "pull", "port": 1, "side_channel_port": 2, "model": tmp_path,
            "log": tmp_path / "log"}  # fmt: skip
    assert build_environment(EngineSpec(**spec), {ENV_METHOD: "spawn"})[ENV_METHOD] == "fork"
    spawning = EngineSpec(**spec, env={ENV_METHOD: "spawn"})
    assert build_environment(spawning, {})[ENV_METHOD] == "spawn"
    # A condition: forked engines of the lab decode faster.
    assert [Engine(one).describe()["start_method"] for one in (EngineSpec(**spec), spawning)] == ["fork", "spawn"]
