"""The rules' section of docs/doctor.md, made of the rules themselves (docs/generate.py writes it)."""

from __future__ import annotations

from .engine import load_rules, read_docs
from .finding import Rule


def render_rules() -> str:
    """Return one section for each rule, gravest first, each with its own anchor."""
    rules = sorted(load_rules(), key=lambda rule: (("error", "warning", "info").index(rule.severity), rule.name))
    index = "\n".join(f"| [{rule.name}](#{rule.name}) | {rule.severity} | {read_title(rule)} |" for rule in rules)
    head = "| rule | gravity | what it finds |\n| --- | --- | --- |\n"
    return head + index + "\n\n" + "\n\n".join(render_rule(rule) for rule in rules)


def read_title(rule: Rule) -> str:
    """Return the first sentence of a rule's documentation, on one line."""
    return " ".join(read_docs(rule).split("\n\n", maxsplit=1)[0].split())


def render_rule(rule: Rule) -> str:
    """Return the section of one rule."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in read_docs(rule).split("\n\n")]
    return "\n\n".join([f"### {rule.name}", *paragraphs, f"Printed remedy: *{rule.remedy}*"])
