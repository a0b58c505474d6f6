"""Child processes in groups of their own: start with a log, wait until ready, stop without leaving anything behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .errors import ProcessDiedError

TAIL_LINES = 25
_POLL_S = 0.1


class Child:
    """One child process with its own group and log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cores: Sequence[int] = (),
        nice: int = 0,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self._env = dict(os.environ if env is None else env)
        self._launch = ["--cores", ",".join(map(str, cores)), "--nice", str(nice), "--parent", str(os.getpid())]
        self._process: subprocess.Popen[bytes] | None = None
        self._terminated = False

    @property
    def pid(self) -> int:
        """Return the process id (0 before the start)."""
        return self._process.pid if self._process else 0

    def start(self) -> None:
        """Start the command, detached from the terminal's signals, output appended to the log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lab.launch", *self._launch, "--", *self.command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def wait_ready(self, is_ready: Callable[[], bool], timeout_s: float, on_wait: Callable[[], None]) -> None:
        """Poll until `is_ready`; raise ProcessDiedError if the process ends first or the time is over."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            self.require_alive()
            if time.monotonic() > deadline:
                raise ProcessDiedError(self.name, f"was not ready after {timeout_s:.0f} s", self.log, self.tail())
            on_wait()
            time.sleep(_POLL_S)

    def require_alive(self) -> None:
        """Raise ProcessDiedError if the process has ended."""
        if not self.is_alive():
            code = self._process.returncode if self._process else None
            raise ProcessDiedError(self.name, f"ended with exit status {code}", self.log, self.tail())

    def tail(self) -> str:
        """Return the last lines of the log."""
        return read_tail(self.log)

    def kill(self) -> None:
        """Kill the whole group at once, as a crash would."""
        self.send_signal(signal.SIGKILL)
        if self._process:
            self._process.wait()

    def terminate(self) -> None:
        """Ask the process to end, once, as an init system does: the server ends its own workers.

        A SIGTERM to the whole group, or a second one, would kill vLLM's workers in the middle of their clean end.
        """
        if self._process is not None and not self._terminated:
            self._terminated = True
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self._process.pid, signal.SIGTERM)

    def stop(self, grace_s: float = 15.0) -> None:
        """Ask the process to end, wait, then SIGKILL what is left of its group."""
        if self._process is None:
            return
        self.terminate()
        if not self.is_alive():
            # Nobody is left to end the workers of a server that died.
            self.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline and (self.is_alive() or group_members(self.pid)):
            time.sleep(_POLL_S)
        # The group outlives its leader: an engine's workers may still be there when the server has gone.
        self.send_signal(signal.SIGKILL)
        self._process.wait()
        while time.monotonic() < deadline + 5 and group_members(self.pid):
            time.sleep(_POLL_S)

    def send_signal(self, number: int) -> None:
        """Send a signal to the whole group."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, number)
            except (ProcessLookupError, PermissionError):
                return


def stop_all(children: Sequence[Child], grace_s: float = 15.0) -> None:
    """Stop several children together: signal all first, so that their grace periods overlap."""
    for child in children:
        child.terminate()
    for child in children:
        child.stop(grace_s)


def read_tail(log: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a log."""
    try:
        text = log.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])


def group_members(group: int) -> list[int]:
    """Return the process ids (zombies left out) whose process group or session is `group`."""
    import psutil

    members = []
    for pid in psutil.pids():
        try:
            if group in (os.getpgid(pid), os.getsid(pid)) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                members.append(pid)
        except (ProcessLookupError, PermissionError, psutil.Error):
            continue
    return members
