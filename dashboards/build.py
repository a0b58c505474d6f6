"""All built files, by their path below `dashboards/built`."""

from __future__ import annotations

from pathlib import Path

from .assemble import render_board
from .boards import BOARDS
from .config import Config
from .provisioning import Sources, provide_dashboards, provide_sources
from .rules.alerts import make_alerts
from .rules.recording import make_recordings
from .rules.render import render

BUILT = Path(__file__).parent / "built"


def build(config: Config, sources: Sources | None = None) -> dict[str, str]:
    """Return path -> text of dashboards, rules and provisioning files."""
    sources = sources or Sources()
    return {
        **{f"{board.uid}.json": render_board(config, board) for board in BOARDS},
        "rules/kvlens-recording.yaml": render(config, make_recordings(config)),
        "rules/kvlens-alerts.yaml": render(config, make_alerts(config)),
        "provisioning/dashboards/kvlens.yaml": provide_dashboards(sources),
        "provisioning/datasources/kvlens.yaml": provide_sources(config, sources),
    }


def write(files: dict[str, str], folder: Path) -> list[str]:
    """Write what differs and return its paths. Files that are no longer built are left alone."""
    changed = []
    for path, text in files.items():
        target = folder / path
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def find_stale(files: dict[str, str], folder: Path) -> list[str]:
    """Return paths that are missing, differ, or are there without being built."""
    present = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} if folder.exists() else set()
    different = {path for path in files.keys() & present if (folder / path).read_text(encoding="utf-8") != files[path]}
    return sorted(different | (files.keys() ^ present))
