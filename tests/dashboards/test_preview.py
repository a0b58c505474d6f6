"""`kvlens dashboards preview`: every panel is drawn from what its queries answer; what fails is said in its place."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from analysis.report.bundle import read_bundle
from analysis.source import open_session
from dashboards.build import build
from dashboards.check import DEFAULTS, find_trace
from dashboards.command import dashboards
from dashboards.config import Config
from dashboards.preview.charts import make_chart
from dashboards.preview.page import render_board
from dashboards.preview.read import Answer, Sources, name_series, read_panel
from dashboards.preview.units import choose_scale, write_value
from dashboards.prometheus import Series, Span, read_duration

RUN = Path(__file__).resolve().parents[1] / "fixtures/runs/push"
CHROMIUM = shutil.which("chromium")
BOARDS = {path[:-5]: json.loads(text) for path, text in build(Config()).items() if path.endswith(".json")}
SPAN = Span(1000.0, 1060.0)
LABELS = {"class": "queue", "segment": "wire", "engine_id": "<b>P0</b>", "mode": "push", "peer": "D0", "instance": "h"}


class Answering:
    """Answers every query with two series of ten points; a query with `broken` in it as Prometheus would."""

    def read(self, expression: str, span: Span) -> list[Series]:
        if "broken" in expression:
            raise ValueError("1:5: parse error: unexpected identifier")
        times = [span.start + 6 * n for n in range(10)]
        return [
            Series({**LABELS, "role": role}, tuple((at, scale * (at - span.start)) for at in times))
            for role, scale in (("prefill", 0.01), ("decode", 0.02))
        ]

    def read_instant(self, expression: str, at: float) -> list[Series]:
        return [Series(LABELS, ((at, 0.25),))]

    def read_exemplars(self, expression: str, span: Span) -> list[Series]:
        return [Series({"trace_id": "a" * 32}, ((span.start + 5, 0.1),))]


@pytest.fixture(scope="module")
def sources() -> Any:
    with open_session([RUN]) as session:
        values = {**DEFAULTS, "trace_id": find_trace(Config(), session, DEFAULTS)}
        yield Sources(Answering(), session, SPAN, values)  # type: ignore[arg-type]


def render(board: dict[str, Any], sources: Sources, bundle: str = "/* </script> */") -> str:
    return render_board(board, sources, bundle, "ten points")


@pytest.mark.parametrize("uid", BOARDS)
def test_every_panel_is_drawn(uid: str, sources: Sources) -> None:
    page = render(BOARDS[uid], sources)
    panels = [panel for panel in BOARDS[uid]["panels"] if panel["type"] != "row"]
    assert page.count("<section ") == len(panels)
    assert "No data" not in page
    assert '<p class="faint">failed' not in page
    assert "<b>P0</b>" not in page
    assert page.count("</script>") == 3
    drawn = page.count('<div class="chart"') + page.count("<table") + page.count('class="number"')
    drawn += page.count("waterfall") + page.count("Asks Tempo")
    assert drawn >= len(panels)


def test_charts_compile(sources: Sources) -> None:
    import vl_convert

    graphs = [panel for board in BOARDS.values() for panel in board["panels"] if panel["type"] == "timeseries"]
    assert len(graphs) > 40
    for panel in graphs[::7]:
        chart = make_chart(panel, read_panel(panel, sources), SPAN, 120)
        svg = vl_convert.vegalite_to_svg({**chart, "width": 600}, show_warnings=False)
        assert svg.count("<path") > 1, panel["title"]


def test_failing_and_empty_panels_say_so(sources: Sources) -> None:
    graph = next(panel for panel in BOARDS["kvlens-overview"]["panels"] if panel["type"] == "timeseries")
    broken = {**graph, "targets": [{**graph["targets"][0], "expr": "broken ("}]}
    assert read_panel(broken, sources).note == "failed: 1:5: parse error: unexpected identifier"
    table = next(panel for panel in BOARDS["kvlens-incident"]["panels"] if panel["title"] == "Slowest requests")
    assert "give --source" in read_panel(table, Sources(sources.prometheus, None, SPAN, sources.values)).note


def test_a_gap_is_no_line() -> None:
    graph = next(panel for panel in BOARDS["kvlens-overview"]["panels"] if panel["type"] == "timeseries")
    series = Series({}, ((1000.0, 1.0), (1001.0, 1.0), (1050.0, 2.0)))
    values = make_chart(graph, Answer(series=(("a", series),)), SPAN, 100)["layer"][0]["data"]["values"]
    assert [point["v"] for point in values] == [1, 1, None, 2]


@pytest.mark.parametrize(
    ("unit", "value", "text"),
    [
        ("s", 0.0123, "12.3 ms"), ("s", 90, "90 s"), ("s", 300, "5 min"), ("s", 0, "0 s"), ("percentunit", 0.4, "40 %"),
        ("Bps", 2.5e9, "2.5 GB/s"), ("bytes", 4096, "4.1 kB"), ("reqps", 1.5, "1.5 req/s"), ("none", 12345, "12.3 k"),
        ("ms", 1500, "1.5 s"), ("", 3, "3"),
    ],
)  # fmt: skip
def test_units(unit: str, value: float, text: str) -> None:
    assert write_value(unit, value) == text


def test_one_scale_for_an_axis() -> None:
    assert choose_scale("s", [0.5, 0.001]).write(0.001) == "1 ms"
    assert choose_scale("Bps", [5e6, 10]).suffix == " MB/s"


def test_names_of_series() -> None:
    assert name_series("{{ a }} of {{b}}{{c}}", {"a": "1", "b": "2"}) == "1 of 2"
    assert name_series("__auto", {"__name__": "x", "a": "1"}) == "a=1"
    assert read_duration("1h30m") == 5400


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_real_browser_draws_every_chart(sources: Sources, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(render(BOARDS["kvlens-wire"], sources, read_bundle()), encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
             "--virtual-time-budget=10000", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]  # fmt: skip
    done = subprocess.run(
        [str(CHROMIUM), *flags, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    body = re.search(r"<body[^>]*>", done.stdout)
    assert body is not None
    charts = page.read_text(encoding="utf-8").count('<div class="chart"')
    assert charts > 10
    assert f'data-drawn="{charts}"' in body.group()
    assert "data-failed" not in body.group()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--board", "nothing"], "no board nothing"),
        (["--set", "cluster"], "sets nothing"),
        (["--last", "soon"], "no duration"),
    ],
)
def test_wrong_wishes_are_named(arguments: list[str], said: str, tmp_path: Path) -> None:
    base = ["preview", "--prometheus", "http://127.0.0.1:9", "--out", str(tmp_path)]
    done = CliRunner().invoke(dashboards, [*base, *arguments])
    assert done.exit_code == 2, done.output
    assert said in done.output
