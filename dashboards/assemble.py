"""Put panels on the grid and write dashboards as JSON."""

from __future__ import annotations

import json
from typing import Any

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from .boards import Board
from .config import Config
from .variables import make_variables

WIDTH = 24
TAG = "kvlens"


def assemble(config: Config, board: Board) -> Any:
    """Return a dashboard of the SDK."""
    link = dashboard.DashboardLink("kvlens").type(model.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True)
    result = (
        dashboard.Dashboard(board.title).uid(board.uid).description(board.description).tags([TAG]).readonly()
        .time("now-3h", "now").refresh("1m").timezone("browser").tooltip(model.DashboardCursorSync.CROSSHAIR)
        .link(link.include_vars(True).keep_time(True))
    )  # fmt: skip
    for variable in (*(make_variables(config) if board.common else ()), *(make() for make in board.variables)):
        result = result.with_variable(variable)
    place(config, board, result)
    return result.build()


def place(config: Config, board: Board, result: Any) -> None:
    """Add the rows and their panels at fixed places, numbered in reading order."""
    top, number = 0, 1
    for row in board.rows:
        result.with_row(dashboard.Row(row.title).id(number).grid_pos(model.GridPos(x=0, y=top, w=WIDTH, h=1)))
        number, left, top = number + 1, 0, top + 1
        for function, width in row.panels:
            if left + width > WIDTH:
                left, top = 0, top + row.height
            position = model.GridPos(x=left, y=top, w=width, h=row.height)
            result.with_panel(function(config).id(number).grid_pos(position))
            number, left = number + 1, left + width
        top += row.height


def render_board(config: Config, board: Board) -> str:
    """Return a dashboard's JSON: sorted keys, so that a change shows as a change."""
    return json.dumps(assemble(config, board), cls=JSONEncoder, sort_keys=True, indent=2) + "\n"
