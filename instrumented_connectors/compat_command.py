"""`kvlens compat`: what of this environment's vLLM and NIXL kvlens can record."""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table

from . import compat


@click.command("compat", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def command(as_json: bool) -> None:
    """Check what kvlens can record of the installed vLLM and NIXL.

    Exit code 0: spans of both seams can be recorded; 1: something required is missing, the connector would run stock.

    \b
    Examples:
      kvlens compat
      kvlens compat --json
    """
    result = check_environment()
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result)
    sys.exit(0 if result["records"] else 1)


def check_environment() -> dict[str, Any]:
    """Return versions, and for every required seam and optional probe whether the installed vLLM has it."""
    version = compat.vllm_version()
    checks = [_check_facade(), _check_agent(), *_check_probes()]
    return {
        "schema": 1,
        "vllm": version or None,
        "nixl": compat.distribution_version("nixl", "nixl-cu12", "nixl-cu13") or None,
        "supported": list(compat.SUPPORTED),
        "in_supported_range": compat.is_supported(version),
        "records": all(check["found"] for check in checks if check["required"]),
        "checks": checks,
    }


def _check_facade() -> dict[str, Any]:
    for name in compat.CONNECTOR_MODULES:
        try:
            lacking = compat.missing(import_module(name).NixlConnector, compat.REQUIRED_FACADE)
        except ImportError:
            continue
        return _check("connector facade", True, not lacking, ", ".join(lacking))
    return _check("connector facade", True, False, "no NIXL connector; install vLLM")


def _check_agent() -> dict[str, Any]:
    try:
        agent = import_module("vllm.distributed.nixl_utils").NixlWrapper
    except ImportError:
        agent = None
    if agent is None:
        return _check("NIXL agent", True, False, "install nixl")
    lacking = compat.missing(agent, compat.REQUIRED_AGENT)
    return _check("NIXL agent", True, not lacking, ", ".join(lacking))


def _check_probes() -> list[dict[str, Any]]:
    workers = _worker_classes()
    return [
        _check(f"probe {probe.method}", False, any(hasattr(worker, probe.method) for worker in workers),
               f"without it: no {probe.loses}")
        for probe in compat.PROBES
    ]  # fmt: skip


def _worker_classes() -> list[Any]:
    found = []
    for name in compat.WORKER_MODULES:
        try:
            module = import_module(name)
        except ImportError:
            continue
        found += [value for key, value in vars(module).items() if key.startswith("Nixl") and key.endswith("Worker")]
    return found


def _check(name: str, required: bool, found: bool, note: str) -> dict[str, Any]:
    return {"name": name, "required": required, "found": found, "note": "" if found else note}


def _print(result: dict[str, Any]) -> None:
    low, high = result["supported"]
    inside = "inside" if result["in_supported_range"] else "outside"
    console = Console()
    console.print(f"vLLM {result['vllm'] or 'not installed'} ({inside} the range that was read: {low} to {high}), "
                  f"NIXL {result['nixl'] or 'not installed'}")  # fmt: skip
    table = Table("seam", "required", "found", "note")
    for check in result["checks"]:
        found = "[green]yes[/]" if check["found"] else "[red]no[/]"
        table.add_row(check["name"], "yes" if check["required"] else "optional", found, check["note"])
    console.print(table)
