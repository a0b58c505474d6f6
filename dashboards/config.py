"""The one configuration that every query, rule and provisioning file is a function of."""

from __future__ import annotations

from dataclasses import dataclass

from instrumented_connectors.metrics import catalogue as table

RATE_WINDOW = "5m"


@dataclass(frozen=True)
class Config:
    """Names of an installation, and limits of its alerts.

    Attributes:
        prefix: of kvlens's metrics.
        efa_prefix: of the EFA counters.
        recorded: prefix of recorded series.
        selectors: label matchers of every dashboard query.
        prometheus_uid, tempo_uid, clickhouse_uid: data sources by their fixed uid.
        spans_table: ClickHouse table of spans.
        runbook_url: where the runbooks are, without the closing slash.
        lease_seconds: `kv_lease_duration` of the fleet.
        stuck_seconds: how long a decode engine may wait for KV.
        writer_seconds: how long both sides of a push may wait for their post.
        transfer_floor: bytes per second that a pair reaches while it transfers.
        coordination_share: share of the hand-over's seconds that coordination may take.
        coordination_seconds: mean seconds per request below which no share of coordination is a problem.
        retransmitted_share: share of EFA packets that may be retransmitted.
    """

    prefix: str = table.PREFIX
    efa_prefix: str = "node_amazonefa_"
    recorded: str = "kvlens:"
    selectors: str = 'cluster=~"$cluster", namespace=~"$namespace", model_name=~"$model_name"'
    prometheus_uid: str = "kvlens-prometheus"
    tempo_uid: str = "kvlens-tempo"
    clickhouse_uid: str = "kvlens-clickhouse"
    spans_table: str = "otel_traces"
    runbook_url: str = "docs/runbooks"
    lease_seconds: float = 30
    stuck_seconds: float = 30
    writer_seconds: float = 15
    transfer_floor: float = 1e9
    coordination_share: float = 0.4
    coordination_seconds: float = 0.05
    retransmitted_share: float = 0.001

    def name(self, metric: table.Metric, suffix: str = "") -> str:
        """Return a metric's name in this installation."""
        return self.prefix + metric.name.removeprefix(table.PREFIX) + suffix

    def record(self, metric: table.Metric, suffix: str = "") -> str:
        """Return the name of the series that holds the metric's rate."""
        base = metric.name.removeprefix(table.PREFIX).removesuffix("_total")
        return f"{self.recorded}{base}{suffix}:rate{RATE_WINDOW}"

    @property
    def engines(self) -> str:
        """Name of the recorded series that says who an engine is."""
        return f"{self.recorded}engine"
