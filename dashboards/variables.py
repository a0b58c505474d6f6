"""Template variables: the same five on every dashboard, so that links keep what was chosen."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.models import dashboard as model

from instrumented_connectors.metrics import catalogue as table

from .config import Config
from .panels.make import prometheus_source

# A fleet without a label has an empty value: ".*" matches that as well, the SDK's "All" of listed values would not.
_LABELS = (
    ("cluster", "Cluster", ""),
    ("namespace", "Namespace", 'cluster=~"$cluster"'),
    ("model_name", "Model", 'cluster=~"$cluster", namespace=~"$namespace"'),
    ("role", "Role", 'cluster=~"$cluster", namespace=~"$namespace", model_name=~"$model_name"'),
)


def make_variables(config: Config) -> list[Any]:
    """Return cluster, namespace, model_name, role and engine."""
    info = config.name(table.ENGINE_INFO)
    chosen = f'{config.selectors}, role=~"$role"'
    return [
        *(_listed(config, name, label, f"{info}{{{matchers}}}" if matchers else info, name)
          for name, label, matchers in _LABELS),
        _listed(config, "engine", "Engine", f"{info}{{{chosen}}}", "engine_id"),
    ]  # fmt: skip


def _listed(config: Config, name: str, label: str, series: str, of: str) -> Any:
    return (
        dashboard.QueryVariable(name).label(label).datasource(prometheus_source(config))
        .query({"query": f"label_values({series}, {of})", "refId": name}).multi(True).include_all(True).all_value(".*")
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
        .current(model.VariableOption(text="All", value="$__all"))
    )  # fmt: skip


def make_baseline() -> Any:
    """Return the time to compare with."""
    return dashboard.CustomVariable("baseline").label("Compare with").values(
        "1 hour ago : 1h, 1 day ago : 1d, 1 week ago : 1w"
    ).current(model.VariableOption(text="1 hour ago", value="1h"))  # fmt: skip


def make_trace_id() -> Any:
    """Return the field for a trace id."""
    return dashboard.TextBoxVariable("trace_id").label("Trace id").default_value("")


def make_slower() -> Any:
    """Return the duration from which on a request counts as slow."""
    return dashboard.TextBoxVariable("slower").label("Slower than").default_value("1s")
