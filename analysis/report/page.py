"""A report as one HTML file: style, sections, chart library and data in it, and a policy that forbids the network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .html import Figures, render_section
from .model import Report, Section

HERE = Path(__file__).parent

# Vega compiles its expressions; nothing may be loaded or sent.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:;"
    " form-action 'none'; base-uri 'none'"
)

FOOTER = "This file loads nothing from anywhere and holds no prompt, token or header."


def render_page(report: Report, sections: Sequence[tuple[str, Section]], warnings: Sequence[str], bundle: str) -> str:
    """Render the page.

    sections: (id, section) in order. warnings: printed above everything. bundle: the chart library's script.
    """
    figures = Figures()
    body = "\n".join(render_section(name, section, figures) for name, section in sections)
    links = "".join(f'<a href="#{escape(name)}">{escape(section.title)}</a>' for name, section in sections)
    alarms = "".join(f'<p class="warning">{escape(line)}</p>' for line in warnings)
    script = bundle.replace("</script", "<\\/script")
    title = " against ".join(run.name for run in reversed(report.runs))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(POLICY, quote=False)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)} - kvlens report</title>
<style>
{read_asset("page.css")}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p class="faint">{escape(describe(report))}</p>
{alarms}</header>
<nav aria-label="Sections">{links}</nav>
<main>
{body}
</main>
<noscript><p class="warning">The charts need JavaScript; every figure is in the tables too.</p></noscript>
<footer>Made by kvlens {escape(read_version())}. {escape(FOOTER)}</footer>
<script type="application/json" id="charts">{figures.encode()}</script>
<script>{script}</script>
<script>
{read_asset("page.js")}</script>
</body>
</html>
"""


def describe(report: Report) -> str:
    """Describe the runs in one line each: mode, requests, model, versions, time."""
    return " / ".join(_describe_run(run.breakdown.run.manifest, run.breakdown.summary) for run in report.runs)


def _describe_run(manifest: dict[str, object], summary: dict[str, object]) -> str:
    model, versions = manifest.get("model"), manifest.get("versions")
    parts = [
        "SYNTHETIC, not measured" if manifest.get("synthetic") else "",
        str(manifest.get("mode") or "mode unknown"),
        f"{summary['requests']} requests",
        str(model.get("name")) if isinstance(model, dict) and model.get("name") else "",
        f"vLLM {versions['vllm']}" if isinstance(versions, dict) and versions.get("vllm") else "",
        str(manifest.get("created") or "")[:16].replace("T", " "),
    ]
    return ", ".join(part for part in parts if part)


def read_version() -> str:
    """Return kvlens' own version."""
    try:
        return version("kvlens")
    except PackageNotFoundError:
        return "(not installed)"


def read_asset(name: str) -> str:
    """Return a script or style sheet of the page, by file name."""
    return (HERE / name).read_text(encoding="utf-8")
