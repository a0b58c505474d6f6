"""A query of Grafana's ClickHouse data source, which the SDK doesn't model."""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.cog import builder as cogbuilder
from grafana_foundation_sdk.cog import variants as cogvariants

_FORMATS = {"timeseries": 0, "table": 1, "traces": 3}


class _Query(cogvariants.Dataquery):  # type: ignore[misc]
    def __init__(self, sql: str, source: Any, kind: str) -> None:
        self._json = {
            "datasource": source,
            "editorType": "sql",
            "format": _FORMATS[kind],
            "queryType": kind,
            "rawSql": sql,
            "refId": "A",
        }

    def to_json(self) -> dict[str, object]:
        """Return what the plugin reads."""
        return dict(self._json)


class ClickHouseQuery(cogbuilder.Builder):  # type: ignore[misc]
    """Build a query.

    Args:
        sql: ClickHouse SQL with the plugin's macros.
        source: reference of the data source.
        kind: table, timeseries or traces.
    """

    def __init__(self, sql: str, source: Any, *, kind: str = "table") -> None:
        self._query = _Query(sql, source, kind)

    def build(self) -> _Query:
        """Return the query."""
        return self._query
