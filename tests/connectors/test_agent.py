"""The wrapped agent against a small real one: two agents in one process that move bytes between buffers."""

from __future__ import annotations

from typing import Any

import pytest

from instrumented_connectors import events
from instrumented_connectors.agent import CurrentRequest, wrap_agent
from instrumented_connectors.recorder import Recorder


class Telemetry:
    postDuration, xferDuration, totalBytes, descCount = 11, 22, 33, 2


class MemoryAgent:
    """Implements the part of NIXL's agent protocol that vLLM uses, over a dict of named memories."""

    def __init__(self, network: dict[str, MemoryAgent], name: str, polls: int = 2) -> None:
        self.network, self.name, self.polls = network, name, polls
        self.memory: list[bytes] = [b""] * 8
        self.inbox: dict[str, list[bytes]] = {}
        network[name] = self

    def make_prepped_xfer(self, operation, local, local_ids, remote, remote_ids, notif_msg=b""):  # noqa: PLR0917
        if len(local_ids) != len(remote_ids):
            raise ValueError("descriptor counts differ")
        return {"op": operation, "pairs": list(zip(local_ids, remote_ids, strict=True)), "peer": remote,
                "left": self.polls, "notif": notif_msg}  # fmt: skip

    def transfer(self, handle: dict[str, Any]) -> str:
        if handle["peer"] not in self.network:
            raise ConnectionError("peer is gone")
        return "PROC"

    def check_xfer_state(self, handle: dict[str, Any]) -> str:
        if handle["left"]:
            handle["left"] -= 1
            return "PROC"
        peer = self.network[handle["peer"]]
        for mine, theirs in handle["pairs"]:
            self.memory[mine] = peer.memory[theirs]
        peer.inbox.setdefault(self.name, []).append(handle["notif"])
        return "DONE"

    def get_xfer_telemetry(self, handle: dict[str, Any]) -> Telemetry:
        return Telemetry()

    def release_xfer_handle(self, handle: dict[str, Any]) -> None:
        handle["released"] = True

    def send_notif(self, agent: str, notif_msg: bytes = b"") -> None:
        self.network[agent].inbox.setdefault(self.name, []).append(notif_msg)

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        received, self.inbox = self.inbox, {}
        return received


@pytest.fixture
def pair() -> tuple[MemoryAgent, MemoryAgent, Recorder, CurrentRequest]:
    network: dict[str, MemoryAgent] = {}
    local, remote = MemoryAgent(network, "local"), MemoryAgent(network, "remote")
    recorder, current = Recorder(), CurrentRequest()
    assert wrap_agent(local, recorder, current) == []
    return local, remote, recorder, current


def codes(recorder: Recorder) -> list[int]:
    return [event[0] for event in recorder.drain()]


def test_a_transfer_works_as_before_and_is_recorded(pair) -> None:  # type: ignore[no-untyped-def]
    local, remote, recorder, current = pair
    remote.memory[5] = b"kv"
    current.request_id = "request"
    handle = local.make_prepped_xfer("READ", 0, [1], "remote", [5], notif_msg=b"peer:1")
    current.request_id = None
    assert local.transfer(handle) == "PROC"
    assert [local.check_xfer_state(handle) for _ in range(3)] == ["PROC", "PROC", "DONE"]
    assert isinstance(local.get_xfer_telemetry(handle), Telemetry)
    local.release_xfer_handle(handle)
    assert (local.memory[1], handle["released"], remote.inbox) == (b"kv", True, {"local": [b"peer:1"]})

    prep, posted, done, telemetry = recorder.drain()
    assert prep[3:] == (id(handle), "READ", 1, b"peer:1", "request", "MainThread", True)
    assert posted[3:] == (id(handle), "MainThread", True)
    assert (done[2], done[4], done[5]) == (id(handle), 3, "DONE")
    assert posted[1] <= done[3] <= done[1]
    assert telemetry[2:] == (id(handle), 11, 22, 33, 2)


def test_a_peer_that_died_ends_the_transfer(pair) -> None:  # type: ignore[no-untyped-def]
    """NIXL raises then, instead of answering ERR; the exception is the host's."""
    local, remote, recorder, _ = pair
    remote.memory[5] = b"kv"
    handle = local.make_prepped_xfer("READ", 0, [1], "remote", [5])
    local.transfer(handle)
    handle.clear()
    with pytest.raises(KeyError):
        local.check_xfer_state(handle)
    done = recorder.drain()[-1]
    assert (done[0], done[2], done[4], done[5]) == (events.DONE, id(handle), 1, "ERR")


def test_host_exceptions_pass_unchanged(pair) -> None:  # type: ignore[no-untyped-def]
    local, _, recorder, _ = pair
    with pytest.raises(ValueError, match="descriptor counts differ"):
        local.make_prepped_xfer("READ", 0, [1, 2], "remote", [5])
    handle = local.make_prepped_xfer("READ", 0, [1], "nobody", [5])
    with pytest.raises(ConnectionError, match="peer is gone"):
        local.transfer(handle)
    failed_prep, _, posted = recorder.drain()
    assert failed_prep[-1] is False
    assert (posted[0], posted[-1]) == (events.POSTED, False)


def test_a_failing_telemetry_read_stays_the_hosts_own(pair) -> None:  # type: ignore[no-untyped-def]
    _, remote, recorder, _ = pair
    network = {"x": remote}
    broken = MemoryAgent(network, "broken", polls=0)

    def raise_instead(_handle: object) -> None:
        raise RuntimeError("no telemetry")

    broken.get_xfer_telemetry = raise_instead  # type: ignore[method-assign,assignment]
    wrap_agent(broken, recorder, CurrentRequest())
    with pytest.raises(RuntimeError, match="no telemetry"):
        broken.get_xfer_telemetry({})  # type: ignore[arg-type]
    assert recorder.drain()[0][3:] == (None, None, None, None)


def test_notifications_are_recorded_only_when_there_are_some(pair) -> None:  # type: ignore[no-untyped-def]
    local, remote, recorder, _ = pair
    assert local.get_new_notifs() == {}
    remote.send_notif("local", notif_msg=b"a")
    remote.send_notif("local", b"b")
    assert local.get_new_notifs() == {"remote": [b"a", b"b"]}
    local.send_notif("remote", notif_msg=b"HB:x")
    notified, sent = recorder.drain()
    assert (notified[0], notified[2]) == (events.NOTIFIED, [b"a", b"b"])
    assert (sent[0], sent[3], sent[5]) == (events.SENT, b"HB:x", True)


def test_an_agent_without_a_required_method_stays_untouched() -> None:
    class Old:
        def transfer(self, handle: object) -> str:
            return "PROC"

    agent = Old()
    assert "make_prepped_xfer" in wrap_agent(agent, Recorder(), CurrentRequest())
    assert "transfer" not in vars(agent)
