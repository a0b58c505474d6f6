"""The same rows from files, from the collector's tables in a chDB directory, and with a window of time."""

import json

import pytest
from test_leases import build

from analysis.errors import KvlensError
from analysis.load import load_files
from analysis.reuse.conversations import report_conversations
from analysis.reuse.decisions import report_decisions
from analysis.reuse.leases import report_leases
from analysis.run import find_run
from analysis.source import open_session
from analysis.sources import open_source, read_address

QUERIES = ("readbacks", "decisions", "validations", "leases", "conversations")


def read_all(session):
    rows = {}
    for name in QUERIES:
        frame = session.query(name)
        rows[name] = sorted(json.dumps(row, sort_keys=True, default=str) for row in frame.iter_rows(named=True))
    return rows


def test_every_query_gives_the_same_rows(tmp_path):
    run = build(tmp_path / "run")
    with open_session([run]) as session:
        from_files, ledger = read_all(session), report_leases(session).ledger
    target = f"chdb:{tmp_path / 'spans'}"
    load_files(find_run([run]).files, read_address(target), 20_000)
    with open_source(target) as session:
        assert read_all(session) == from_files
        assert report_leases(session).ledger.equals(ledger)
        assert report_decisions(session).decisions.height == 5
        assert report_conversations(session).tasks.height == 3
    assert {name: len(rows) for name, rows in from_files.items()} == {
        "readbacks": 2, "decisions": 5, "validations": 0, "leases": 18, "conversations": 5,
    }  # fmt: skip


@pytest.mark.parametrize("share", [0.3, 0.75])
def test_half_written_files_are_read_as_far_as_they_go(tmp_path, share):
    """Cut in the middle of a line: what is whole is reported, what is missing is said, nothing else is raised."""
    run = build(tmp_path / "run")
    for path in (run / "traces").iterdir():
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * share)])
    with open_session([run]) as session:
        assert session.bad_lines > 0
        said = []
        for report in (report_decisions, report_conversations, report_leases):
            try:
                report(session)
            except KvlensError as error:
                said.append(str(error))
        decisions = session.query("decisions").height
    assert decisions < 5
    assert all(text.startswith("no ") and "Try: " in text for text in said), said
    assert len(said) < 3 or not decisions
