"""Built files: current, and as far as can be seen without Grafana, sound."""

from __future__ import annotations

import json
import re
import sys
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

sys.path.insert(0, str(Path(__file__).parent))
from sdk_types import find_mistyped

from dashboards.boards import BOARDS
from dashboards.build import BUILT, build, find_stale, write
from dashboards.config import Config
from dashboards.provisioning import make_config_maps
from dashboards.targets import find_board_targets, find_targets, list_variables
from instrumented_connectors.metrics.catalogue import METRICS, TIME_TO_FIRST_TOKEN

FILES = build(Config())
JSONS = {path: json.loads(text) for path, text in FILES.items() if path.endswith(".json")}
boards = pytest.mark.parametrize("board", JSONS.values(), ids=lambda board: board["uid"])


def panels_of(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def test_checked_in_files_are_current() -> None:
    assert find_stale(FILES, BUILT) == [], "run `kvlens dashboards build`"


def test_uids_and_titles_are_unique() -> None:
    assert len({board["uid"] for board in JSONS.values()}) == len(BOARDS)
    assert len({board["title"] for board in JSONS.values()}) == len(BOARDS)


@boards
def test_uid_is_one_that_grafana_takes(board: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_-]{8,40}", board["uid"])


@boards
def test_models_round_trip(board: dict[str, Any]) -> None:
    again = json.loads(json.dumps(Dashboard.from_json(board), cls=JSONEncoder))
    assert again.keys() == board.keys()
    # The SDK knows no ClickHouse query and reads rows loosely: what it does model must come back.
    assert {key: again[key] for key in again if key != "panels"} == {
        key: board[key] for key in again if key != "panels"
    }
    assert [panel["title"] for panel in again["panels"]] == [panel["title"] for panel in board["panels"]]


@boards
def test_values_are_of_the_models_types(board: dict[str, Any]) -> None:
    assert find_mistyped(board) == []


def test_what_is_of_another_type_is_named() -> None:
    board = deepcopy(next(board for board in JSONS.values() if board["uid"] == "kvlens-overview"))
    place = next(n for n, panel in enumerate(board["panels"]) if panel["type"] == "stat")
    board["panels"][place]["gridPos"]["h"] = "4"
    board["panels"][place]["options"]["graphMode"] = "volcano"
    board["panels"][place]["fieldConfig"]["defaults"]["decimals"] = True
    board["refresh"] = 60
    board["colour"] = "blue"
    problems = [text.split(" is n")[0] for text in find_mistyped(board)]
    panel = f"panels[{place}]"
    assert problems == [
        "board.refresh: 60", "board.colour is unknown", f"{panel}.fieldConfig.defaults.decimals: True",
        f"{panel}.gridPos.h: '4'", f"{panel}.options.graphMode: 'volcano'",
    ]  # fmt: skip


@boards
def test_panels_have_ids_and_do_not_overlap(board: dict[str, Any]) -> None:
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    boxes = [panel["gridPos"] for panel in board["panels"]]
    for box in boxes:
        assert 0 <= box["x"] < box["x"] + box["w"] <= 24
    for one, other in combinations(boxes, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]


@boards
def test_no_dangling_variable(board: dict[str, Any]) -> None:
    listed = [variable["name"] for variable in board.get("templating", {}).get("list", [])]
    assert len(listed) == len(set(listed))
    used = set().union(*(list_variables(target.text) for target in find_board_targets(board)))
    assert used <= set(listed)
    for variable in board["templating"]["list"]:
        query = variable.get("query")
        assert list_variables(query["query"] if isinstance(query, dict) else "") <= set(listed)


@boards
def test_no_dangling_data_source(board: dict[str, Any]) -> None:
    provided = json.loads(FILES["provisioning/datasources/kvlens.yaml"].split("\n", 1)[1])["datasources"]
    known = {(source["type"], source["uid"]) for source in provided}
    for panel in panels_of(board):
        used = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert {(source["type"], source["uid"]) for source in used} <= known
    for variable in board["templating"]["list"]:
        if "datasource" in variable:
            assert (variable["datasource"]["type"], variable["datasource"]["uid"]) in known


@boards
def test_links_lead_to_boards(board: dict[str, Any]) -> None:
    uids = {each["uid"] for each in JSONS.values()}
    assert set(re.findall(r"/d/([\w-]+)", json.dumps(board))) <= uids


@boards
def test_panels_say_what_to_do(board: dict[str, Any]) -> None:
    for panel in panels_of(board):
        assert panel["title"]
        assert panel["description"].rstrip().endswith((".", "up.")), panel["title"]
        assert panel["targets"], panel["title"]


def test_every_metric_that_is_queried_exists() -> None:
    config = Config()
    real = {config.name(metric) for metric in METRICS}
    traced = {f"kvlens_traced_{m.name.removeprefix('kvlens_')}" for m in (*METRICS, TIME_TO_FIRST_TOKEN)}
    known = real | traced | {"kvlens_efa_devices", "kvlens_traced_spans_total"}
    texts = " ".join(
        re.sub(r'"[^"]*"', "", t.text) for t in find_targets(config, FILES) if t.kind in {"promql", "alert"}
    )
    used = {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"\bkvlens_\w+", texts)}
    assert used <= known


def test_every_recorded_series_that_is_read_is_recorded() -> None:
    config = Config()
    rules = FILES["rules/kvlens-recording.yaml"]
    recorded = set(re.findall(r'record: "([^"]+)"', rules))
    read = set(re.findall(r"\bkvlens:[\w:]+", " ".join(t.text for t in find_targets(config, FILES))))
    assert read <= recorded


def test_metrics_of_the_catalogue_that_no_panel_shows() -> None:
    config = Config()
    texts = " ".join(target.text for target in find_targets(config, FILES))
    assert {m.name for m in METRICS if config.name(m) not in texts and config.record(m) not in texts} == set()


def test_write_touches_only_what_differs(tmp_path: Any) -> None:
    assert len(write(FILES, tmp_path)) == len(FILES)
    assert write(FILES, tmp_path) == []
    (tmp_path / "kvlens-wire.json").write_text("{}", encoding="utf-8")
    (tmp_path / "old.json").write_text("{}", encoding="utf-8")
    assert find_stale(FILES, tmp_path) == ["kvlens-wire.json", "old.json"]
    assert write(FILES, tmp_path) == ["kvlens-wire.json"]


def test_config_maps_hold_every_dashboard_and_fit() -> None:
    document = json.loads(make_config_maps(FILES, "monitoring").split("\n", 1)[1])
    names = [item["metadata"]["name"] for item in document["items"]]
    assert len(names) == len(set(names))
    for item in document["items"]:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", item["metadata"]["name"])
        assert item["metadata"]["namespace"] == "monitoring"
        assert len(json.dumps(item)) < 1_000_000
    shown = [item for item in document["items"] if item["metadata"]["labels"].get("grafana_dashboard")]
    assert {json.loads(next(iter(item["data"].values())))["uid"] for item in shown} == {b.uid for b in BOARDS}
