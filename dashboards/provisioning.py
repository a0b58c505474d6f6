"""Files that bring dashboards, data sources and folders into Grafana, and the same as Kubernetes ConfigMaps."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .config import Config

FOLDER = "kvlens"
NOTE = "# Built by `kvlens dashboards build`: change the Python in dashboards/provisioning.py.\n"


@dataclass(frozen=True)
class Sources:
    """Where the data sources are.

    clickhouse: host:port of the native protocol.
    dashboards: folder of the JSON files as Grafana sees it.
    """

    prometheus: str = "http://prometheus:9090"
    tempo: str = "http://tempo:3200"
    clickhouse: str = "clickhouse:9000"
    dashboards: str = "/var/lib/grafana/dashboards/kvlens"


def render_yaml(value: Any) -> str:
    """Return YAML; JSON is YAML, so the document is JSON with a note above it."""
    return NOTE + json.dumps(value, indent=2, sort_keys=True) + "\n"


def provide_dashboards(sources: Sources) -> str:
    """Return provisioning/dashboards: a provider that makes the folder and watches the files."""
    provider = {
        "name": "kvlens",
        "folder": FOLDER,
        "folderUid": FOLDER,
        "type": "file",
        "allowUiUpdates": False,
        "updateIntervalSeconds": 60,
        "options": {"path": sources.dashboards},
    }
    return render_yaml({"apiVersion": 1, "providers": [provider]})


def provide_sources(config: Config, sources: Sources) -> str:
    """Return provisioning/datasources: exemplars of Prometheus lead to Tempo."""
    host, _, port = sources.clickhouse.rpartition(":")
    prometheus = {
        "name": "kvlens Prometheus",
        "type": "prometheus",
        "uid": config.prometheus_uid,
        "url": sources.prometheus,
        "jsonData": {
            "timeInterval": "15s",
            "exemplarTraceIdDestinations": [{"name": "trace_id", "datasourceUid": config.tempo_uid}],
        },
    }
    tempo = {"name": "kvlens Tempo", "type": "tempo", "uid": config.tempo_uid, "url": sources.tempo}
    clickhouse = {
        "name": "kvlens ClickHouse",
        "type": "grafana-clickhouse-datasource",
        "uid": config.clickhouse_uid,
        # A password belongs into secureJsonData of a file of your own, or into Grafana's environment.
        "jsonData": {"host": host, "port": int(port), "protocol": "native", "defaultDatabase": "otel"},
    }
    listed = [{"access": "proxy", "editable": False, **source} for source in (prometheus, tempo, clickhouse)]
    return render_yaml({"apiVersion": 1, "datasources": listed})


def make_config_maps(files: Mapping[str, str], namespace: str) -> str:
    """Return a List of ConfigMaps: one per dashboard and data source file, as Grafana's side-car looks for them.

    files: built files by their path.
    """
    items = [
        _config_map(path, text, namespace) for path, text in files.items() if not path.startswith("provisioning/dash")
    ]
    return render_yaml({"apiVersion": "v1", "kind": "List", "items": items})


def _config_map(path: str, text: str, namespace: str) -> dict[str, Any]:
    name = path.rsplit("/", 1)[-1]
    metadata: dict[str, Any] = {"name": _resource_name(path), "namespace": namespace, "labels": _labels(path)}
    if path.endswith(".json"):
        metadata["annotations"] = {"grafana_folder": FOLDER}
        text = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {name: text}}


def _labels(path: str) -> dict[str, str]:
    if path.endswith(".json"):
        return {"grafana_dashboard": "1"}
    return {"grafana_datasource": "1"} if "datasources" in path else {"kvlens_rules": "1"}


def _resource_name(path: str) -> str:
    stem = path.rsplit(".", 1)[0].replace("/", "-")
    return stem if stem.startswith("kvlens") else f"kvlens-{stem}"
