"""Makes the helpers of this folder and the span builder importable, and breaks built worlds down."""

import sys
from pathlib import Path

import pytest

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.source import open_session

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "analysis")]


@pytest.fixture
def analyse(tmp_path):
    """Write worlds into one run and return its JSON document."""

    def analyse_worlds(*worlds):
        for world in worlds:
            world.write(tmp_path / "run" / "traces")
        with open_session([tmp_path / "run"]) as session:
            return render_document(break_down(session))

    return analyse_worlds
