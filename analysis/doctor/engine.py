"""Find the rules (every module of `rules`) and apply them."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from . import rules
from .facts import Facts
from .finding import SEVERITIES, Finding, Rule


@cache
def load_rules() -> tuple[Rule, ...]:
    """Return every rule, by name."""
    names = sorted(module.name for module in pkgutil.iter_modules(rules.__path__) if not module.name.startswith("_"))
    return tuple(import_module(f"{rules.__name__}.{name}").RULE for name in names)


def read_docs(rule: Rule) -> str:
    """Return the documentation of a rule: its module's docstring."""
    return (import_module(rule.check.__module__).__doc__ or "").strip()


def diagnose(facts: Facts) -> list[Finding]:
    """Apply all rules; the gravest findings first, among equals those that affect most."""
    found = [finding for rule in load_rules() if (finding := rule.check(facts)) is not None]
    return sorted(found, key=lambda finding: (SEVERITIES.index(finding.severity), -finding.share, finding.rule))
