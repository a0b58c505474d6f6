"""`kvlens efa-exporter`: EFA hardware counters for Prometheus, for the textfile collector, or as a sample stream."""

from __future__ import annotations

import ipaddress
import json
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

import rich_click as click
from prometheus_client import CollectorRegistry, start_http_server

from .collector import EfaCollector, render_text, write_text_file
from .samples import DEFAULT_MAX_BYTES, SampleWriter, encode_info, encode_reading
from .sysfs import DEFAULT_ROOT, EfaReader

DEFAULT_LISTEN = "127.0.0.1:9810"


@click.command("efa-exporter")
@click.option("--listen", default=DEFAULT_LISTEN, show_default=True, metavar="HOST:PORT", help="Address of the daemon.")
@click.option(
    "--root",
    type=click.Path(path_type=Path),
    default=DEFAULT_ROOT,
    show_default=True,
    help="Where sysfs is mounted; in a container often /host/sys.",
)
@click.option("--once", is_flag=True, help="Read once, write the metrics, and end.")
@click.option("--output", type=click.Path(path_type=Path), help="With --once: replace this file instead of printing.")
@click.option("--samples", type=click.Path(path_type=Path), help="Append counter samples (JSON lines) to this file.")
@click.option("--interval", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="Seconds per sample.")
@click.option("--duration", type=click.FloatRange(min=0), help="With --samples: end after this many seconds.")
@click.option(
    "--max-bytes",
    type=click.IntRange(min=1),
    default=DEFAULT_MAX_BYTES,
    show_default=True,
    help="With --samples: end when this much was written.",
)
@click.option("--json", "as_json", is_flag=True, help="Read once and print devices and counters as JSON.")
@click.option("--total-suffix", is_flag=True, help="Typed counters named ..._total instead of the common names.")
def efa_exporter(
    *,
    listen: str,
    root: Path,
    once: bool,
    output: Path | None,
    samples: Path | None,
    interval: float,
    duration: float | None,
    max_bytes: int,
    as_json: bool,
    total_suffix: bool,
) -> None:
    """Export the hardware counters of this host's EFA devices.

    As a daemon (the default) it serves /metrics on a loopback address. Names are node_amazonefa_COUNTER with the labels
    device and port. It needs no privileges, and devices may come and go while it runs.

    \b
    Examples:
      kvlens efa-exporter --listen 127.0.0.1:9810
      kvlens efa-exporter --once --output /var/lib/node_exporter/textfile/efa.prom
      kvlens efa-exporter --samples RUN/efa/host-a.jsonl --interval 0.5
      kvlens efa-exporter --root /host/sys --json
    """
    if output and not once:
        raise click.UsageError("--output is for a single reading.\nTry: add --once")
    if once + bool(samples) + as_json > 1:
        raise click.UsageError("--once, --samples and --json exclude each other.\nTry: one command for each")
    if not root.is_dir():
        raise click.UsageError(f"no folder {root}.\nTry: --root with the path at which sysfs is mounted")
    reader = EfaReader(root)
    warn_without_devices(reader)
    if as_json:
        print_json(reader)
    elif samples:
        write_samples(reader, samples, interval, duration, max_bytes)
    elif once:
        write_once(EfaCollector(reader, total_suffix=total_suffix), output)
    else:
        serve(EfaCollector(reader, total_suffix=total_suffix), listen)


def warn_without_devices(reader: EfaReader) -> None:
    """Say on stderr when there is nothing to read; not an error, since devices can be attached later."""
    if not reader.inventory.refresh():
        click.echo(
            f"No EFA device below {reader.inventory.folder}. Try: --root /host/sys in a container, or `modprobe efa`",
            err=True,
        )


def print_json(reader: EfaReader) -> None:
    scan = reader.scan()
    document = {
        "schema": 1,
        "devices": [{"device": device.name, **encode_info(device)} for device in scan.devices],
        "ports": [
            {**encode_reading(reading), "state": reading.state, "rate_bytes_per_second": reading.rate}
            for reading in scan.readings
        ],
        "read_errors": dict(reader.errors),
    }
    click.echo(json.dumps(document, indent=2))


def write_once(collector: EfaCollector, output: Path | None) -> None:
    text = render_text(collector)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        write_text_file(output, text)
    except OSError as error:
        fail(f"cannot write {output}: {error.strerror}", "a folder that exists and that this user may write to")


def write_samples(reader: EfaReader, path: Path, interval: float, duration: float | None, max_bytes: int) -> None:
    stop = catch_signals()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            writer = SampleWriter(reader, file, max_bytes)
            writer.run(interval, stop, duration)
    except OSError as error:
        fail(f"cannot write {path}: {error.strerror}", "another --samples path, or free space there")
    click.echo(f"{writer.passes} passes over {len(reader.inventory.refresh())} EFA devices in {path}", err=True)


def serve(collector: EfaCollector, listen: str) -> None:
    host, port = parse_listen(listen)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    stop = catch_signals()
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        fail(f"cannot listen on {listen}: {error.strerror}", "another --listen address; another exporter may run there")
    click.echo(f"EFA counters on http://{format_address(host, server.server_port)}/metrics", err=True)
    stop.wait()
    server.shutdown()
    server.server_close()
    thread.join()


def parse_listen(listen: str) -> tuple[str, int]:
    """Return host and port of "HOST:PORT", "[IPV6]:PORT" or ":PORT" (loopback).

    Raises:
        click.UsageError: it is none of these.
    """
    host, found, port = listen.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not found or not port.isdecimal() or int(port) > 65535:
        raise click.UsageError(f"{listen!r} is no address.\nTry: --listen {DEFAULT_LISTEN}")
    if not is_loopback(host):
        click.echo(f"Serving beyond this host on {host}: anybody who can reach it can read the counters.", err=True)
    return host, int(port)


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def catch_signals() -> threading.Event:
    """Return an event that SIGINT and SIGTERM set."""
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not in the handler itself: it interrupts the thread that waits, which may hold the event's lock just then.
        signal.signal(number, lambda *_: threading.Thread(target=stop.set, daemon=True).start())
    return stop


def fail(message: str, remedy: str) -> NoReturn:
    """End with the reason and what to do about it."""
    click.echo(f"Error: {message}\nTry: {remedy}", err=True)
    sys.exit(1)
