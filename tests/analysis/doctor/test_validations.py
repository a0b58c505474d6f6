"""What a scheduler says is wrong with transfer parameters is somebody's business: each reason has a rule."""

from __future__ import annotations

import polars as pl
import pytest

from analysis.doctor.facts import Facts
from analysis.doctor.rules import foreign_parameters, incomplete_parameters
from instrumented_connectors import offers

INCOMPLETE = {offers.MISSING_FIELD, offers.WRONG_TYPE}
IN_DECISIONS = {offers.PREFIX_MISMATCH}
"""Judged by what was then fetched (wrong-prefix)."""


def make_facts(reason: str) -> Facts:
    row = {"id": "cmpl-x-0-aaaaaaaa", "key": "x", "engine": "P0", "reason": reason, "field": "remote_request_id"}
    nobody = pl.DataFrame(schema={"request_id": pl.String})
    nothing = ("id", "key", "engine", "name", "error_type", "failure_type", "reason")
    empty = pl.DataFrame(schema=dict.fromkeys(nothing, pl.String))
    return Facts(nobody, nobody, empty, empty, pl.DataFrame([row]), {}, {}, frozenset({"P0"}))


@pytest.mark.parametrize("reason", sorted(offers.REASONS.keys() - IN_DECISIONS))
def test_every_reason_is_found_by_one_rule(reason: str) -> None:
    facts = make_facts(reason)
    found = [finding for rule in (foreign_parameters, incomplete_parameters) if (finding := rule.check(facts))]
    (finding,) = found
    assert finding.rule == ("incomplete-parameters" if reason in INCOMPLETE else "foreign-parameters")
    assert finding.affected == 1
    assert reason in str(finding)
