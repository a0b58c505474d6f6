"""Makes the span builder importable by the tests of this folder, and breaks built worlds down."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from analysis.breakdown import break_down
from analysis.render.json import render_document
from analysis.source import open_session


@pytest.fixture
def analyse(tmp_path):
    """Write worlds into one run and return its JSON document."""

    def analyse_worlds(*worlds, client=None):
        for world in worlds:
            world.write(tmp_path / "run" / "traces")
        if client is not None:
            (tmp_path / "run" / "client.jsonl").write_text(client)
        with open_session([tmp_path / "run"]) as session:
            return render_document(break_down(session))

    return analyse_worlds
