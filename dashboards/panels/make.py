"""The few kinds of panel that the dashboards use, with one look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common as kinds
from grafana_foundation_sdk.models import dashboard as model

from ..clickhouse import ClickHouseQuery
from ..config import Config

Panel = Any
PanelFunction = Callable[[Config], Panel]
Query = tuple[str, str]
"""PromQL, and the legend of its series."""

Limits = Sequence[tuple[float, str]]
"""Values from which on a colour holds."""


def prometheus_source(config: Config) -> Any:
    """Return the reference of the Prometheus data source."""
    return model.DataSourceRef(type_val="prometheus", uid=config.prometheus_uid)


def clickhouse_source(config: Config) -> Any:
    """Return the reference of the ClickHouse data source."""
    return model.DataSourceRef(type_val="grafana-clickhouse-datasource", uid=config.clickhouse_uid)


def make_graph(
    config: Config, title: str, doc: str, queries: Sequence[Query], unit: str,
    *, limits: Limits = (), stacked: bool = False, exemplars: bool = False, signed: bool = False,
    colours: Mapping[str, str] | None = None,
) -> Panel:  # fmt: skip
    """Return a graph over time. Stacked graphs show parts of a whole, signed ones may go below zero.

    colours: of series by their name, so that one thing has one colour everywhere.
    """
    panel = (
        timeseries.Panel().title(title).description(doc).datasource(prometheus_source(config)).unit(unit)
        .thresholds(make_limits(limits)).line_width(1).fill_opacity(60 if stacked else 8)
        .legend(common.VizLegendOptions().show_legend(True).display_mode(kinds.LegendDisplayMode.TABLE)
                .placement(kinds.LegendPlacement.BOTTOM).calcs(["mean", "max", "lastNotNull"])
                .sort_by("Last *").sort_desc(True))
        .tooltip(common.VizTooltipOptions().mode(kinds.TooltipDisplayMode.MULTI).sort(kinds.SortOrder.DESCENDING))
    )  # fmt: skip
    if not signed:
        panel = panel.min(0)
    for name, colour in (colours or {}).items():
        fixed = {"mode": "fixed", "fixedColor": colour}
        panel = panel.override_by_name(name, [model.DynamicConfigValue(id_val="color", value=fixed)])
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(kinds.StackingMode.NORMAL))
    if limits:
        panel = panel.thresholds_style(
            common.GraphThresholdsStyleConfig().mode(kinds.GraphThresholdsStyleMode.DASHED)
        )  # fmt: skip
    return add_queries(config, panel, queries, exemplars=exemplars)


def make_number(
    config: Config, title: str, doc: str, query: str, unit: str, *, limits: Limits = (), decimals: float | None = None
) -> Panel:  # fmt: skip
    """Return one number, coloured by its limits; without any it says neither good nor bad."""
    coloured = kinds.BigValueColorMode.VALUE if limits else kinds.BigValueColorMode.NONE
    panel = (
        stat.Panel().title(title).description(doc).datasource(prometheus_source(config)).unit(unit)
        .thresholds(make_limits(limits)).graph_mode(kinds.BigValueGraphMode.AREA).color_mode(coloured)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    )  # fmt: skip
    if decimals is not None:
        panel = panel.decimals(decimals)
    return add_queries(config, panel, [(query, "")])


def make_list(
    config: Config, title: str, doc: str, query: str, unit: str, *, limits: Limits = (), hidden: Sequence[str] = (),
    smallest_first: bool = False, links: Mapping[str, str] | None = None,
) -> Panel:  # fmt: skip
    """Return a table of the present values, one row per series, largest first unless small is bad.

    links: column -> where its cells lead to.
    """
    panel = (
        table.Panel().title(title).description(doc).datasource(prometheus_source(config)).unit(unit)
        .thresholds(make_limits(limits))
        .sort_by([common.TableSortByFieldState().display_name("Value").desc(not smallest_first)])
        .with_transformation(model.DataTransformerConfig(
            id_val="organize", options={"excludeByName": dict.fromkeys(["Time", *hidden], True)}))
    )  # fmt: skip
    for column, url in (links or {}).items():
        link = [{"title": "Open", "url": url, "targetBlank": True}]
        panel = panel.override_by_name(column, [model.DynamicConfigValue(id_val="links", value=link)])
    target = prometheus.Dataquery().ref_id("A").expr(query).instant().format("table")
    return panel.with_target(target.datasource(prometheus_source(config)))


def make_sql_table(
    config: Config, title: str, doc: str, sql: str, *, units: dict[str, str] | None = None, links: bool = False
) -> Panel:  # fmt: skip
    """Return a table of a ClickHouse query. With links, the column trace_id leads to the request's dashboard."""
    panel = table.Panel().title(title).description(doc).datasource(clickhouse_source(config)).filterable(True)
    panel = panel.with_target(ClickHouseQuery(sql, clickhouse_source(config)))
    for column, unit in (units or {}).items():
        panel = panel.override_by_name(column, [model.DynamicConfigValue(id_val="unit", value=unit)])
    if links:
        url = "/d/kvlens-request-clickhouse?var-trace_id=${__value.raw}&${__url_time_range}"
        link = {"title": "This request's waterfall", "url": url}
        panel = panel.override_by_name("trace_id", [model.DynamicConfigValue(id_val="links", value=[link])])
    return panel


def make_sql_graph(config: Config, title: str, doc: str, sql: str, unit: str) -> Panel:
    """Return a graph over time of a ClickHouse query: columns time, one text, one number."""
    panel = timeseries.Panel().title(title).description(doc).datasource(clickhouse_source(config)).unit(unit).min(0)
    return panel.with_target(ClickHouseQuery(sql, clickhouse_source(config), kind="timeseries"))


def make_traces(title: str, doc: str, source: Any, query: Any) -> Panel:
    """Return Grafana's waterfall of one trace."""
    return dashboard.Panel().type("traces").title(title).description(doc).datasource(source).with_target(query)


def make_limits(limits: Limits) -> Any:
    """Return thresholds: green, then the colours of the limits; red below a limit from which on all is well."""
    is_floor = bool(limits) and limits[0][1] == "green"
    steps = [model.Threshold(value=None, color="red" if is_floor else "green")]
    steps += [model.Threshold(value=value, color=color) for value, color in limits]
    return dashboard.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)


def add_queries(config: Config, panel: Panel, queries: Sequence[Query], *, exemplars: bool = False) -> Panel:
    """Add PromQL targets A, B, ..."""
    for index, (expression, legend) in enumerate(queries):
        target = prometheus.Dataquery().ref_id(chr(ord("A") + index)).expr(expression).range()
        target = target.legend_format(legend or "__auto").datasource(prometheus_source(config))
        panel = panel.with_target(target.exemplar(True) if exemplars else target)
    return panel
