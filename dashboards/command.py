"""`kvlens dashboards`: build the files, export them for an installation, check their queries against live data."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from analysis.errors import KvlensError

from .config import Config
from .preview.command import preview

if TYPE_CHECKING:
    from .check import Finding
    from .prometheus import Span

BUILT = Path(__file__).parent / "built"


def build_files(config: Config, **sources: str) -> dict[str, str]:
    """Return path -> text of all built files. Raises KvlensError when Grafana's SDK is missing."""
    # Grafana's SDK is an extra: the other commands of kvlens must list without it.
    try:
        from .build import build
        from .provisioning import Sources
    except ImportError as error:
        raise KvlensError(f"Grafana's SDK is not installed: {error}", "pip install 'kvlens[dashboards]'") from error
    return build(config, Sources(**sources))


@click.group()
def dashboards() -> None:
    """Grafana dashboards, Prometheus rules and provisioning files.

    \b
    Examples:
      kvlens dashboards export --out ./grafana
      kvlens dashboards check --prometheus http://127.0.0.1:9090
    """


dashboards.add_command(preview)


@dashboards.command()
@click.option("--out", type=click.Path(path_type=Path), default=BUILT, help="Folder. [default: dashboards/built]")
@click.option("--diff", is_flag=True, help="Write nothing; exit with 1 when a file differs.")
def build(*, out: Path, diff: bool) -> None:
    """Build the checked-in files.

    \b
    Examples:
      kvlens dashboards build
      kvlens dashboards build --diff
    """
    from .build import find_stale, write

    files = build_files(Config())
    if not diff:
        changed = write(files, out)
        click.echo("\n".join([*changed, f"{len(changed)} of {len(files)} files changed"]))
        return
    stale = find_stale(files, out)
    for path in stale:
        click.echo(_show_difference(out / path, files.get(path, "")), nl=False)
    if stale:
        raise KvlensError(f"not as built: {', '.join(stale)}", "kvlens dashboards build")


def _show_difference(path: Path, text: str) -> str:
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = difflib.unified_diff(old.splitlines(True), text.splitlines(True), str(path), "built")
    return "".join(list(lines)[:60])


@dashboards.command()
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder to write into.")
@click.option("--kubernetes", metavar="NAMESPACE", help="Also write configmaps.yaml for this namespace.")
@click.option("--prometheus", default="http://prometheus:9090", show_default=True, help="Data source's address.")
@click.option("--tempo", default="http://tempo:3200", show_default=True, help="Data source's address.")
@click.option("--clickhouse", default="clickhouse:9000", show_default=True, metavar="HOST:PORT", help="Data source.")
@click.option("--runbooks", metavar="URL", help="Where docs/runbooks is published, for the alerts' links.")
@click.option("--transfer-floor", metavar="N", type=float, help="Bytes per second below which a pair is slow.")
@click.option("--lease-seconds", metavar="S", type=float, help="kv_lease_duration of the fleet. [default: 30]")
@click.option("--compress", "factor", default=1.0, metavar="N", help="Divide the rules' windows by N: for a rehearsal.")
def export(
    *,
    out: Path,
    kubernetes: str | None,
    prometheus: str,
    tempo: str,
    clickhouse: str,
    runbooks: str | None,
    transfer_floor: float | None,
    lease_seconds: float | None,
    factor: float,
) -> None:
    """Write dashboards, rules and provisioning files for your installation.

    \b
    Examples:
      kvlens dashboards export --out ./grafana --prometheus http://10.0.0.5:9090
      kvlens dashboards export --out ./grafana --kubernetes monitoring --transfer-floor 5e9
    """
    from .build import write
    from .provisioning import make_config_maps

    if not clickhouse.rpartition(":")[2].isdigit():
        raise KvlensError(f"no port in {clickhouse!r}", "--clickhouse HOST:PORT, for instance db:9000", exit_code=2)
    wishes = {"runbook_url": runbooks, "transfer_floor": transfer_floor, "lease_seconds": lease_seconds}
    config = replace(Config(), **{name: value for name, value in wishes.items() if value is not None})  # type: ignore[arg-type]
    from .compress import compress

    files = build_files(config, prometheus=prometheus, tempo=tempo, clickhouse=clickhouse)
    files.update({path: compress(text, factor) for path, text in files.items() if path.startswith("rules/")})
    if kubernetes:
        files["configmaps.yaml"] = make_config_maps(files, kubernetes)
    write(files, out)
    click.echo(f"{len(files)} files in {out}")


@dashboards.command()
@click.option("--prometheus", metavar="URL", help="A live Prometheus that scrapes engines and has the rules loaded.")
@click.option("--run", type=click.Path(path_type=Path), help="A run on which the SQL is tried.")
@click.option("--window", default="5m", show_default=True, help="What $__rate_interval stands for.")
@click.option("--baseline", default="1h", show_default=True, help="What $baseline of the incident page stands for.")
@click.option("--last", default="0s", metavar="DURATION", help="Look at this much time, not at one moment.")
@click.option("--at", type=float, metavar="UNIX", help="When that time ends, in Unix seconds. [default: now]")
@click.option("--compress", "factor", default=1.0, metavar="N", help="Windows of the rules divided by N, as exported.")
@click.option("--all", "show_all", is_flag=True, help="List the queries that answer too, with their rows.")
@click.option("--allow-empty", is_flag=True, help="Exit with 1 for failing queries only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON (schema 1).")
def check(
    *,
    prometheus: str | None,
    run: Path | None,
    window: str,
    baseline: str,
    last: str,
    at: float | None,
    factor: float,
    show_all: bool,
    allow_empty: bool,
    as_json: bool,
) -> None:
    """Evaluate every query of every panel and rule, and list those that are empty or fail.

    Exit code: 0 when all answer with data, 1 when one is empty or fails. An alert counts as answered when the series
    that it reads exist. Queries of Tempo are listed as skipped.

    \b
    Examples:
      kvlens dashboards check --prometheus http://127.0.0.1:9090
      kvlens dashboards check --prometheus http://127.0.0.1:9090 --last 1h --all
      kvlens dashboards check --run runs/push --json
    """
    if prometheus is None and run is None:
        raise KvlensError("nothing to check against", "--prometheus URL, --run RUN, or both", exit_code=2)
    from .prometheus import Span, read_duration

    span = Span.until(at, read_duration(last))
    findings = _check(
        Config(), prometheus, run, {"__rate_interval": window, "baseline": baseline}, span=span, factor=factor
    )
    click.echo(_render_json(findings) if as_json else _render_text(findings, show_all=show_all))
    bad = {"failed"} if allow_empty else {"failed", "empty"}
    if any(finding.state in bad for finding in findings):
        raise SystemExit(1)


def _check(
    config: Config, prometheus: str | None, run: Path | None, wishes: dict[str, str], *, span: Span, factor: float
) -> list[Finding]:  # fmt: skip
    files = build_files(config)
    from .check import DEFAULTS, check_prometheus, check_run, skip_others
    from .prometheus import Prometheus
    from .targets import find_targets

    targets, values = list(find_targets(config, files)), {**DEFAULTS, **wishes}
    findings: list[Finding] = []
    if prometheus is not None:
        findings += check_prometheus(config, targets, Prometheus(prometheus), values, span=span, factor=factor)
    if run is not None:
        findings += check_run(config, targets, run, values)
    return [*findings, *skip_others(targets, sql=run is not None, promql=prometheus is not None)]


def _render_json(findings: list[Finding]) -> str:
    return json.dumps({"schema": 1, "queries": [finding.to_json() for finding in findings]}, indent=2)


def _render_text(findings: list[Finding], *, show_all: bool) -> str:
    lines = [
        f"{f.state.upper():8}{f.where} ({f.kind}): {f.detail or f'{f.rows} rows'}"
        for f in findings
        if show_all or f.state != "ok"
    ]
    counts = Counter(finding.state for finding in findings)
    return "\n".join([*lines, ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))])
