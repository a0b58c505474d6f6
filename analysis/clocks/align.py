"""One run's clocks: the boots that its frames name, the messages between them, and what follows for its frames."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from ..attempts import pick_single_pairs
from ..source import Session
from .correct import READBACK_COLUMNS, ROUTER_COLUMNS, correct, correct_engines, correct_handshakes
from .messages import choose_stride, list_messages
from .relate import relate_clocks
from .relation import Relation


@dataclass(frozen=True)
class Aligned:
    """Frames of sql/milestones.sql, routers.sql and handshakes.sql on one clock, in no order.

    single: rows of engines and routers that are one request by an identity which occurs once (attempts.py).
    relation, messages: how they were put there; None if all are of one boot.
    """

    engines: pl.DataFrame
    routers: pl.DataFrame
    handshakes: pl.DataFrame
    single: pl.DataFrame
    relation: Relation | None
    messages: pl.DataFrame | None = None

    def leave_rows(self) -> Aligned:
        """Leave the rows away, when they are joined: only whose clock is whose is still told."""
        engines = self.engines.select("p_boot", "p_engine", "d_boot", "d_engine").unique()
        return replace(
            self, engines=engines, routers=self.routers.select("r_boot").unique(), single=self.single.clear()
        )

    def correct_readbacks(self, attempts: pl.DataFrame) -> pl.DataFrame:
        """Put what reuse.readback.join_readbacks added on the same clock."""
        return attempts if self.relation is None else correct(attempts, self.relation, READBACK_COLUMNS)


def align_clocks(session: Session) -> Aligned:
    """Read a run's milestones and put them on one clock. A run of one boot is left as it is, at no cost."""
    engines, routers, handshakes = (session.query(name) for name in ("milestones", "routers", "handshakes"))
    single = pick_single_pairs(engines, routers)
    columns = (engines["p_boot"], engines["d_boot"], routers["r_boot"])
    boots = {boot for column in columns for boot in column.unique() if boot}
    if len(boots) < 2:
        return Aligned(engines, routers, handshakes, single, None)
    one_in = choose_stride(engines)
    messages = list_messages(engines, routers, single, session.query("messages", one_in=one_in), one_in)
    relation = relate_clocks(messages, boots, choose_reference(engines, routers))
    return Aligned(
        correct_engines(engines, relation),
        correct(routers, relation, ROUTER_COLUMNS),
        correct_handshakes(handshakes, engines, relation),
        single,
        relation,
        messages,
    )


def choose_reference(engines: pl.DataFrame, routers: pl.DataFrame) -> str:
    """Choose the clock to put the others on: the busiest router's (it measures TTFT), else the busiest D's or P's."""
    for boots in (routers["r_boot"], engines["d_boot"], engines["p_boot"]):
        known = boots.drop_nulls().filter(boots.drop_nulls() != "")
        if len(known):
            return str(known.mode().sort()[0])
    raise AssertionError("no boot in frames that have two")
