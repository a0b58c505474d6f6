"""`kvlens report`: sections, self-containment, escaping, and every chart drawn by a real browser."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "analysis"))
from span_builder import MS, Request, World, add_request, pull_times

from analysis.cli import main
from analysis.report.bundle import read_bundle
from analysis.report.making import build_sections, load_run
from analysis.report.model import Chart, Report
from analysis.report.page import render_page

RUNS = Path(__file__).parents[1] / "fixtures" / "runs"
CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--virtual-time-budget=10000",
)  # fmt: skip


@pytest.fixture(scope="module")
def pair():
    return Report((load_run(RUNS / "pull"), load_run(RUNS / "push")))


@pytest.fixture(scope="module")
def page(pair, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "pair.html"
    path.write_text(render_page(pair, build_sections(pair), [], read_bundle()), encoding="utf-8")
    return path


def browse(path, tmp_path, *flags):
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_sections_of_a_pair(pair):
    sections = dict(build_sections(pair))
    wanted = [
        "summary",
        "doctor",
        "comparison",
        "budget",
        "arrivals",
        "waterfall",
        "tokens",
        "leases",
        "conditions",
        "quality",
    ]
    assert [name for name in sections if name in wanted] == wanted


def test_sections_of_one_run_without_a_comparison(pair):
    sections = dict(build_sections(Report(pair.runs[:1])))
    assert "comparison" not in sections
    assert "budget" in sections


def test_charts_render_without_a_browser(pair):
    """Vega-Lite compiles and draws every spec: a wrong field or scale fails here, in milliseconds."""
    import vl_convert

    charts = [part for _, section in build_sections(pair) for part in section.parts if isinstance(part, Chart)]
    assert len(charts) > 8
    for chart in charts:
        svg = vl_convert.vegalite_to_svg({**chart.spec, "width": 600}, show_warnings=False)
        assert svg.count("<path") > 1, chart.description
        assert chart.description


def test_page_loads_nothing(page):
    text = page.read_text(encoding="utf-8")
    markup = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert "default-src 'none'" in markup
    assert not re.search(r"<(link|img|iframe|object|embed)\b|\bsrc=|url\(|@import", markup)
    assert "/tmp/" not in markup  # no paths of the machine
    assert len(text) < 2_000_000


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (500, True)])
def test_real_browser_draws_every_chart(page, tmp_path, width, dark):
    probe = "<script>addEventListener('load',function(){setTimeout(function(){document.body.dataset.overflow="
    probe += "document.documentElement.scrollWidth-innerWidth},3000)})</script></body>"
    copy = tmp_path / "copy.html"
    # The last one: the chart library's script holds the text "</body>" too.
    before, _, after = page.read_text(encoding="utf-8").rpartition("</body>")
    copy.write_text(before + probe + after, encoding="utf-8")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dom = browse(copy, tmp_path, f"--window-size={width},1200", "--dump-dom", *scheme)
    body = re.search(r"<body[^>]*>", dom).group()
    charts = len(re.findall(r'<div class="chart', page.read_text(encoding="utf-8")))
    assert f'data-drawn="{charts}"' in body
    assert "data-failed" not in body
    assert 'data-overflow="0"' in body, body  # nothing sticks out sideways
    assert dom.count("<svg") >= charts


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_screenshot_is_not_blank(page, tmp_path):
    browse(page, tmp_path, "--window-size=1000,1600", f"--screenshot={tmp_path / 'page.png'}")
    assert (tmp_path / "page.png").stat().st_size > 50_000


def test_hostile_request_ids_stay_text(tmp_path):
    hostile = "</script><script>document.body.dataset.failed='owned'</script><b>"
    world = World("pull")
    for number in range(3):
        times, _ = pull_times(number * 400 * MS, wire=20)
        add_request(world, Request(hostile if number == 1 else f"r{number}"), times)
    world.write(tmp_path / "run" / "traces")
    report = Report((load_run(tmp_path / "run"),), (hostile,))
    text = render_page(report, build_sections(report), [hostile], "/* </script> */")
    assert hostile not in text
    assert text.count("</script>") == 3
    assert "&lt;/script&gt;" in text


def test_command_writes_the_file(tmp_path):
    out = tmp_path / "x.html"
    arguments = ["report", str(RUNS / "push"), "--out", str(out), "--request", "req-7-00003"]
    done = CliRunner().invoke(main, arguments, prog_name="kvlens")
    assert done.exit_code == 0, done.output
    assert "chosen, req-7-00003" in out.read_text(encoding="utf-8")


def test_command_names_unknown_requests(tmp_path):
    done = CliRunner().invoke(main, ["report", str(RUNS / "push"), "--request", "nobody"], prog_name="kvlens")
    assert done.exit_code == 1
    assert "no request nobody" in done.output
