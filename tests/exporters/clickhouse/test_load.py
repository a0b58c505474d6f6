"""The same spans, read from files, from a chDB directory in the collector's tables and from a server: row for row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from span_builder import MS, Request, World, add_request, pull_times, push_times

from analysis.breakdown import break_down
from analysis.cli import main
from analysis.errors import KvlensError
from analysis.load import load_files, read_pieces
from analysis.render.json import render_document
from analysis.run import find_run
from analysis.source import SQL_DIRECTORY, open_session
from analysis.sources import open_source, read_address

IMPORT_ONLY = {"count_lines", "import_otlp_json", "otel_traces"}
PARAMETERS = {"timeline": {"ids": '["cmpl-push1-0-0a1b2c3d"]', "traces": "[]"}, "messages": {"one_in": 1}}


@pytest.fixture
def run(tmp_path):
    for mode, make in (("push", push_times), ("pull", pull_times)):
        world = World(mode, ranks=2, skews={"decode": 2 * MS})
        world.handshake(world.worker, world.decode if mode == "push" else world.prefill, 0, 5 * MS)
        for number in range(25):
            times, _ = make(number * 15 * MS, prefill_compute=40, wire=10)
            # Ranks that land at the very same moment would leave open which of them is the slowest.
            add_request(world, Request(f"{mode}{number}"), times, slow_rank=number % 2, slow_ns=MS)
        world.write(tmp_path / "run" / "traces")
    return tmp_path / "run"


def list_queries() -> list[str]:
    return sorted(path.stem for path in SQL_DIRECTORY.glob("*.sql") if path.stem not in IMPORT_ONLY)


def run_all(session) -> dict:
    rows = {}
    for name in list_queries():
        try:
            frame = session.query(name, **PARAMETERS.get(name, {}))
        except Exception as error:  # a text with parameters of its own must say so here
            if "Substitution" in str(error):
                rows[name] = "needs parameters"
                continue
            raise
        rows[name] = sorted(json.dumps(row, sort_keys=True, default=str) for row in frame.iter_rows(named=True))
    return rows


def load(run, target: str):
    return load_files(find_run([run]).files, read_address(target), 20_000)


def test_every_query_gives_the_same_rows_from_files_and_from_the_tables(run, tmp_path) -> None:
    with open_session([run]) as session:
        from_files, document = run_all(session), render_document(break_down(session))
    target = f"chdb:{tmp_path / 'spans'}"
    done = load(run, target)
    assert done.new_spans == done.spans > 500
    with open_source(target) as session:
        from_tables, other = run_all(session), render_document(break_down(session))
    compared = [name for name, rows in from_files.items() if rows != "needs parameters"]
    for name in compared:
        assert from_tables[name] == from_files[name], name
    assert {"milestones", "handshakes", "health", "timeline", "load_levels"} <= set(compared)
    assert other["requests"] == document["requests"]
    # A command's RUN may be a source as well, also after a path type has made one slash of two.
    with open_session([Path(target)]) as session:
        assert break_down(session).budgets.height == len(document["requests"])
    print(f"compared row for row: {', '.join(compared)}")


def test_a_recorded_run_with_step_records_gives_the_same_rows(tmp_path) -> None:
    recorded = Path(__file__).parents[2] / "fixtures" / "runs" / "push"
    with open_session([recorded]) as session:
        from_files = run_all(session)
    target = f"chdb:{tmp_path / 'spans'}"
    load(recorded, target)
    with open_source(target) as session:
        from_tables = run_all(session)
    for name, rows in from_files.items():
        assert from_tables[name] == rows, name
    print({name: len(rows) for name, rows in from_files.items()})
    assert {"steps", "threads", "milestones", "evidence"} <= {name for name, rows in from_files.items() if rows}


def test_loading_again_changes_nothing(run, tmp_path) -> None:
    target = f"chdb:{tmp_path / 'spans'}"
    first = load(run, target)
    second = load(run, target)
    assert (second.new_spans, second.skipped) == (0, first.pieces)


def test_a_load_that_died_before_it_recorded_a_piece_stores_it_once(run, tmp_path) -> None:
    target = f"chdb:{tmp_path / 'spans'}"
    files, address = find_run([run]).files, read_address(target)
    whole = load_files(files, address, 20_000, size=60_000)
    assert whole.pieces > 5
    from exporters.clickhouse.database import open_database

    database = open_database(address)
    database.command("TRUNCATE TABLE kvlens_imports")
    database.close()
    # Pieces of another size, none of them recorded: only the span ids tell that everything is there.
    again = load_files(files, address, 20_000, size=200_000)
    assert (again.new_spans, again.spans) == (0, whole.spans)


def test_a_growing_file_is_taken_up_where_it_was(run, tmp_path) -> None:
    target = f"chdb:{tmp_path / 'spans'}"
    path = sorted((run / "traces").glob("vllm-decode*"))[0]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-3]) + lines[-3][:50])
    first = load(run, target)
    assert first.bad_lines == 1
    path.write_bytes(b"".join(lines))
    second = load(run, target)
    assert second.new_spans > 0
    assert load(run, target).new_spans == 0
    with open_source(target) as session:
        everything = session.query("health")["used_spans"][0]
    assert everything == first.new_spans + second.new_spans


def test_compressed_files_are_the_same_pieces(run) -> None:
    path = sorted((run / "traces").glob("*.jsonl"))[0]
    packed = path.with_suffix(".jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert [piece.digest for piece in read_pieces(packed, 4096)] == [piece.digest for piece in read_pieces(path, 4096)]


def test_a_window_of_time_is_what_is_read(run, tmp_path) -> None:
    target = f"chdb:{tmp_path / 'spans'}"
    load(run, target)
    with open_source(target) as session:
        whole = break_down(session).budgets.height
    with open_source(f"{target}?until=2026-09-21T14:13:20.200") as session:
        part = break_down(session).budgets.height
    assert 0 < part < whole
    with pytest.raises(KvlensError, match="no kvlens spans"):
        open_source(f"{target}?since=2030-01-01T00:00:00")


def test_a_server_answers_as_the_files_do(run, tmp_path, server) -> None:
    pytest.importorskip("clickhouse_connect")
    with open_session([run]) as session:
        from_files = run_all(session)
    target = f"clickhouse://{server}/otel"
    done = load(run, target)
    assert done.new_spans == done.spans
    assert load(run, target).new_spans == 0
    with open_source(target) as session:
        from_server = run_all(session)
    for name, rows in from_files.items():
        assert from_server[name] == rows, name
    with open_source(f"{target}?until=2026-09-21T14:13:20.200") as session:
        assert session.query("health")["spans"][0] < done.spans


def test_command(run, tmp_path) -> None:
    target = f"chdb:{tmp_path / 'spans'}"
    done = CliRunner().invoke(main, ["load", str(run), "--to", target, "--ttl-days", "20000"])
    assert done.exit_code == 0, done.output
    assert "new of" in done.output
    done = CliRunner().invoke(main, ["load", str(run)])
    assert done.exit_code == 2
    done = CliRunner().invoke(main, ["load", str(run), "--to", "postgres://x"])
    assert done.exit_code == 2
    assert "begins with none of" in done.output


@pytest.mark.parametrize(
    ("text", "problem"),
    [("chdb:", "no directory"), ("clickhouse://", "no host"), ("chdb:x?nope=1", "unknown option"), ("x", "none of")],
)
def test_addresses_say_what_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(KvlensError, match=problem):
        read_address(text)


def test_an_address_is_shown_without_its_password() -> None:
    address = read_address("clickhouses://me:geheim@host/db?table=t")
    assert (address.port, address.user, address.database, address.table) == (8443, "me", "db", "t")
    assert "geheim" not in address.shown


def test_a_missing_directory_is_not_made_by_reading(tmp_path: Path) -> None:
    with pytest.raises(KvlensError, match="no chDB directory"):
        open_source(f"chdb:{tmp_path / 'nothing'}")
    assert not (tmp_path / "nothing").exists()
