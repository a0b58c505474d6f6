"""A real Prometheus that scrapes a pair, `kvlens metrics` and `kvlens efa-exporter`, and evaluates the built rules.

Its folder is kept: started again on it (`open_store`), dashboards can be checked and drawn without engines.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboards.prometheus import Prometheus, Span
from lab.ports import HOST, choose_port
from lab.process import Child
from lab.run import Pair

from .devices import FixtureDevices
from .profile import write_rules

KVLENS = [str(Path(sys.executable).with_name("kvlens"))]


class Monitor:
    """A running Prometheus on `folder`, and the exporters beside the present pair."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        port = choose_port(None, "Prometheus")
        self.url = f"http://{HOST}:{port}"
        self._server = _make_server(self.folder, port, scrape=True)
        self._exporters: list[Child] = []
        self.devices: FixtureDevices | None = None

    def start(self) -> None:
        self._server.start()
        self._server.wait_ready(lambda: _answers(f"{self.url}/-/ready"), 60, lambda: None)

    def watch(self, pair: Pair, cluster: str) -> None:
        """Scrape a pair under the name of a cluster, with one exporter of its spans and one of fixture devices."""
        metrics, efa = choose_port(None, "kvlens metrics"), choose_port(None, "efa-exporter")
        self.devices = FixtureDevices(self.folder / f"sysfs-{cluster}-{int(time.time())}")
        self.devices.start()
        commands = {
            "metrics": [*KVLENS, "metrics", "--traces", str(pair.out), "--listen", f"{HOST}:{metrics}"],
            "efa": [*KVLENS, "efa-exporter", "--root", str(self.devices.root), "--listen", f"{HOST}:{efa}"],
        }
        for name, command in commands.items():
            child = Child(name, command, pair.out / "logs" / f"exporter-{name}.log", nice=10)
            child.start()
            self._exporters.append(child)
        labels = {"cluster": cluster, "namespace": "lab"}
        engines = [_target(engine.url, job="vllm", instance=f"{engine.id}:8000", **labels) for engine in pair.engines]
        others = [_target(f"{HOST}:{metrics}", job="kvlens-metrics", instance="lab-host:9470", **labels)]
        # Not a device of this machine: the fixtures' sysfs tree.
        others.append(_target(f"{HOST}:{efa}", job="efa-fixture", instance="fixture-host:9810", **labels))
        self._write_targets([*engines, *others])

    def forget(self) -> None:
        """Stop scraping and end the exporters."""
        self._write_targets([])
        for child in self._exporters:
            child.stop(grace_s=5)
        self._exporters.clear()
        if self.devices is not None:
            self.devices.close()
            shutil.rmtree(self.devices.root, ignore_errors=True)

    def stop(self) -> None:
        self.forget()
        self._server.stop(grace_s=20)

    def find_firing(self, cluster: str) -> set[str]:
        """Return the alerts of a cluster that fire now."""
        query = f'ALERTS{{alertstate="firing", cluster="{cluster}"}}'
        return {series.labels["alertname"] for series in Prometheus(self.url).read(query, Span.until(None, 0))}

    def _write_targets(self, targets: list[Any]) -> None:
        scratch = self.folder / "targets.tmp"
        scratch.write_text(json.dumps(targets), encoding="utf-8")
        scratch.replace(self.folder / "targets.json")


@contextmanager
def open_store(folder: Path) -> Iterator[str]:
    """Start a Prometheus on a kept folder, without scraping or rules, and yield its address."""
    port = choose_port(None, "Prometheus")
    server = _make_server(folder.resolve(), port, scrape=False)
    server.start()
    try:
        server.wait_ready(lambda: _answers(f"http://{HOST}:{port}/-/ready"), 60, lambda: None)
        yield f"http://{HOST}:{port}"
    finally:
        server.stop(grace_s=20)


def _make_server(folder: Path, port: int, *, scrape: bool) -> Child:
    config: dict[str, Any] = {"global": {"scrape_interval": "1s", "evaluation_interval": "1s"}}
    if scrape:
        config["rule_files"] = write_rules(folder)
        discovery = {"files": ["targets.json"], "refresh_interval": "5s"}
        config["scrape_configs"] = [{"job_name": "lab", "file_sd_configs": [discovery]}]
        (folder / "targets.json").write_text("[]", encoding="utf-8")
    path = folder / ("prometheus.yml" if scrape else "store.yml")
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    command = [
        shutil.which("prometheus") or "prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder / 'tsdb'}",
        "--storage.tsdb.retention.time=10y", "--enable-feature=exemplar-storage", "--log.level=warn",
        f"--web.listen-address={HOST}:{port}",
    ]  # fmt: skip
    return Child("Prometheus", command, folder / "prometheus.log", nice=5)


def _target(address: str, **labels: str) -> dict[str, Any]:
    return {"targets": [address.removeprefix("http://")], "labels": labels}


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
