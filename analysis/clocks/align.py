"""One run's clocks: the boots that its frames name, the messages between them, and what follows for its frames."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from ..attempts import sort_by_time
from ..source import Session
from .correct import READBACK_COLUMNS, ROUTER_COLUMNS, correct, correct_engines, correct_handshakes
from .messages import list_messages
from .relate import relate_clocks
from .relation import Relation


@dataclass(frozen=True)
class Aligned:
    """Frames of sql/milestones.sql, routers.sql and handshakes.sql on one clock.

    relation, messages: how they were put there; None if all are of one boot.
    """

    engines: pl.DataFrame
    routers: pl.DataFrame
    handshakes: pl.DataFrame
    relation: Relation | None
    messages: pl.DataFrame | None = None

    def correct_readbacks(self, attempts: pl.DataFrame) -> pl.DataFrame:
        """Put what reuse.readback.join_readbacks added on the same clock."""
        return attempts if self.relation is None else correct(attempts, self.relation, READBACK_COLUMNS)


def align_clocks(session: Session) -> Aligned:
    """Read a run's milestones and put them on one clock. A run of one boot is left as it is, at no cost."""
    engines, routers, handshakes = (session.query(name) for name in ("milestones", "routers", "handshakes"))
    boots = {
        *engines["p_boot"].drop_nulls(), *engines["d_boot"].drop_nulls(), *routers["r_boot"].drop_nulls()
    } - {""}  # fmt: skip
    if len(boots) < 2:
        return Aligned(
            _sort(engines), sort_by_time(routers, "r_start", ("r_trace",), nulls_last=False), handshakes, None
        )
    messages = list_messages(engines, routers, session.query("messages"))
    relation = relate_clocks(messages, boots, choose_reference(engines, routers))
    return Aligned(
        _sort(correct_engines(engines, relation)),
        sort_by_time(correct(routers, relation, ROUTER_COLUMNS), "r_start", ("r_trace",), nulls_last=False),
        correct_handshakes(handshakes, engines, relation),
        relation,
        messages,
    )


def _sort(engines: pl.DataFrame) -> pl.DataFrame:
    """The router join takes rows of equal identity by their place in time."""
    timed = engines.with_columns(at=pl.coalesce("p_start", "d_start"))
    return sort_by_time(timed, "at", ("p_id", "d_id"), nulls_last=False).drop("at")


def choose_reference(engines: pl.DataFrame, routers: pl.DataFrame) -> str:
    """Choose the clock to put the others on: the busiest router's (it measures TTFT), else the busiest D's or P's."""
    for boots in (routers["r_boot"], engines["d_boot"], engines["p_boot"]):
        known = boots.drop_nulls().filter(boots.drop_nulls() != "")
        if len(known):
            return str(known.mode().sort()[0])
    raise AssertionError("no boot in frames that have two")
