"""One database, two engines: embedded chDB in a directory, or a ClickHouse server over HTTP; the same texts on both.

    chdb:PATH[?database=otel]                       a directory on this machine
    clickhouse://[user[:password]@]host[:8123]/otel  a server; clickhouses:// (8443) with TLS
    ...&table=otel_traces&since=2026-11-29T10:00:00&until=2026-11-29T11:00:00    which spans to read (UTC)

The password may also come from CLICKHOUSE_PASSWORD, so that it stays out of process lists.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

SCHEMES = ("chdb", "clickhouse", "clickhouses")
# On a cluster a sub-query must see the spans of all shards, not only those beside it.
CLUSTER_SETTINGS = {"distributed_product_mode": "global", "distributed_foreground_insert": "1"}


@dataclass(frozen=True)
class Address:
    """A parsed source text.

    Raises (from parse): ValueError with what is wrong.
    """

    text: str
    scheme: str
    path: str = ""
    host: str = ""
    port: int = 0
    user: str = "default"
    password: str = ""
    database: str = "otel"
    table: str = "otel_traces"
    since: str = ""
    until: str = ""

    @property
    def shown(self) -> str:
        """The text without a password."""
        return self.text.replace(f":{self.password}@", ":***@") if self.password else self.text

    @property
    def filter(self) -> str:
        """A SQL condition on otel_traces for the chosen window, empty for everything."""
        parts = [
            f"Timestamp {operator} toDateTime64('{value}', 9, 'UTC')"
            for operator, value in ((">=", self.since), ("<", self.until))
            if value
        ]
        return " AND ".join(parts)


def is_address(text: str) -> bool:
    """Return whether a text names a database rather than a path."""
    return text.split(":", maxsplit=1)[0] in SCHEMES and ":" in text


def parse_address(text: str) -> Address:
    """Parse a source text.

    Raises:
        ValueError: unknown scheme or option, no path or host, a time that is none.
    """
    scheme, _, rest = text.partition(":")
    if scheme not in SCHEMES:
        raise ValueError(f"{text!r} begins with none of {', '.join(f'{name}:' for name in SCHEMES)}")
    body, _, query = rest.partition("?")
    options: dict[str, Any] = dict(parse_qsl(query, keep_blank_values=True))
    unknown = set(options) - {"database", "table", "since", "until"}
    if unknown:
        raise ValueError(f"unknown option {', '.join(sorted(unknown))} in {text!r}")
    for name in ("since", "until"):
        if name in options:
            options[name] = _read_time(options[name])
    address = Address(text, scheme)
    if scheme == "chdb":
        if not body:
            raise ValueError(f"no directory in {text!r}")
        return replace(address, path=body, **options)
    # A path type on the way here may have made one slash of two.
    parts = urlsplit(f"//{body.lstrip('/')}")
    if not parts.hostname:
        raise ValueError(f"no host in {text!r}")
    database = {"database": parts.path.strip("/")} if parts.path.strip("/") else {}
    return replace(
        address,
        host=parts.hostname,
        port=parts.port or (8443 if scheme == "clickhouses" else 8123),
        user=unquote(parts.username or "default"),
        password=unquote(parts.password or os.environ.get("CLICKHOUSE_PASSWORD", "")),
        **(database | options),
    )


def _read_time(text: str) -> str:
    """Return an ISO time as ClickHouse writes UTC; without an offset it is UTC."""
    when = datetime.fromisoformat(text.replace("Z", "+00:00"))
    when = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return when.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")


class Database(Protocol):
    """What loading and reading need; params fill the {name:Type} placeholders of a text."""

    def command(self, sql: str, params: Mapping[str, Any] | None = None) -> None:
        """Run a statement without a result."""

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> Any:
        """Run a query; returns a pyarrow table."""

    def close(self) -> None:
        """Let go of it."""


class EmbeddedDatabase:
    """A chDB directory; one at a time in a process, as chDB itself allows, but any number of connections to it."""

    def __init__(self, address: Address, *, create: bool = False) -> None:
        from chdb import session

        if not create and not Path(address.path).is_dir():
            raise FileNotFoundError(address.path)
        # Absolute: a second connection to it may be opened, and a loader changes its working folder for a moment.
        self._session = session.Session(str(Path(address.path).absolute()))
        if create:
            self._session.query(f"CREATE DATABASE IF NOT EXISTS `{address.database}`")
        self._session.query(f"USE `{address.database}`")
        if address.filter:
            self._session.query(f"SET additional_table_filters = {_write_filter(address)}")

    def command(self, sql: str, params: Mapping[str, Any] | None = None) -> None:
        """Run a statement without a result."""
        self._session.query(sql, params=dict(params or {}))

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> Any:
        """Run a query; returns a pyarrow table."""
        return fetch_embedded(self._session, sql, params)

    def close(self) -> None:
        """Close it; the filter is the session's and goes with it."""
        self._session.query("SET additional_table_filters = {}")
        self._session.close()


def fetch_embedded(session: Any, sql: str, params: Mapping[str, Any] | None = None) -> Any:
    """Run a query in a chDB session; returns a pyarrow table whose columns lie in the database's own memory.

    chDB's own "ArrowTable" lets go of that memory while the table is in use, so that it is only right as long as every
    column is compressed and unpacked again, a tenth of what a large result costs. Hence the setting is put back.
    """
    import pyarrow as pa

    session.query("SET output_format_arrow_compression_method = 'none'")
    try:
        result = session.query(sql, "Arrow", params=dict(params or {}))
    finally:
        session.query("SET output_format_arrow_compression_method = DEFAULT")
    if not len(result):
        return pa.table({})
    view = result.get_memview()
    whole = pa.py_buffer(view.view())
    held = pa.foreign_buffer(whole.address, whole.size, base=(result, view, whole))
    return pa.ipc.open_file(pa.BufferReader(held)).read_all()


class ServerDatabase:
    """A ClickHouse server by its official client."""

    def __init__(self, address: Address, *, create: bool = False) -> None:
        import clickhouse_connect

        settings = dict(CLUSTER_SETTINGS)
        if address.filter:
            settings["additional_table_filters"] = _write_filter(address)

        def connect(database: str) -> Any:
            return clickhouse_connect.get_client(
                host=address.host, port=address.port, username=address.user, password=address.password,
                database=database, secure=address.scheme == "clickhouses", settings=settings,
                autogenerate_session_id=False,
            )  # fmt: skip

        if create:
            first = connect("default")
            first.command(f"CREATE DATABASE IF NOT EXISTS `{address.database}`")
            first.close()
        self._client = connect(address.database)

    def command(self, sql: str, params: Mapping[str, Any] | None = None) -> None:
        """Run a statement without a result."""
        self._client.command(sql, parameters=dict(params or {}))

    def fetch(self, sql: str, params: Mapping[str, Any] | None = None) -> Any:
        """Run a query; returns a pyarrow table."""
        return self._client.query_arrow(sql, parameters=dict(params or {}), use_strings=True)

    def insert(self, table: str, rows: Any) -> None:
        """Send a pyarrow table."""
        self._client.insert_arrow(table, rows)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def open_database(address: Address, *, create: bool = False) -> EmbeddedDatabase | ServerDatabase:
    """Open the database of an address.

    Raises:
        FileNotFoundError: no such chDB directory, and create is not set.
        ImportError: the client of this engine is not installed.
        Exception: whatever the client says of a server that cannot be reached.
    """
    return (EmbeddedDatabase if address.scheme == "chdb" else ServerDatabase)(address, create=create)


def _write_filter(address: Address) -> str:
    condition = address.filter.replace("'", "\\'")
    tables = [address.table, *(["kvlens_spans"] if address.table == "otel_traces" else [])]
    return "{" + ", ".join(f"'{table}': '{condition}'" for table in tables) + "}"
