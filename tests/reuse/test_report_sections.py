"""Report sections of a run with re-use: they say the same as the commands, and every chart can be drawn."""

import pytest
from test_leases import build as build_leases

from analysis.report.making import build_sections, load_run
from analysis.report.model import Chart, Report


@pytest.fixture(scope="module")
def sections(tmp_path_factory):
    run = build_leases(tmp_path_factory.mktemp("report") / "run")
    return dict(build_sections(Report((load_run(run),))))


def test_sections_are_there(sections):
    assert {"decisions", "leases", "conversations", "budget"} <= set(sections)
    assert "1 of 5 requests fetched" in sections["decisions"].lead
    assert "2 expired before they were used" in sections["leases"].lead
    assert "3 conversations, 5 turns, readback" in sections["conversations"].lead


@pytest.mark.parametrize("name", ["decisions", "leases", "conversations", "budget"])
def test_charts_can_be_drawn(sections, name):
    vl_convert = pytest.importorskip("vl_convert")
    for chart in [part for part in sections[name].parts if isinstance(part, Chart)]:
        svg = vl_convert.vegalite_to_svg({**chart.spec, "width": 600}, show_warnings=False)
        assert svg.count("<path") > 1, chart.description
        assert chart.table is None or chart.table.rows
