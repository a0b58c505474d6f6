"""The doctor: rules over a run's frames, one file each; a healthy run has no finding.

A rule is a pure function of Facts; it neither reads files nor prints. Its module's docstring is its documentation
(docs/doctor.md is made of them). Every threshold is one of `thresholds.py` or explained where it stands.
"""

from __future__ import annotations

from .engine import diagnose
from .facts import Facts, gather
from .finding import Finding, Rule

__all__ = ["Facts", "Finding", "Rule", "diagnose", "gather"]
