"""One request as a text waterfall: what happened when, from the client's send to the first byte."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from ..segments import BARS, CLASS_OF_BAR, PULL_CHAIN, PUSH_CHAIN, READBACK_PARTS
from .table import STYLE_OF_CLASS, word_row

WIDTH = 48

Bar = tuple[str, int, int, int, bool]
"""segment, begin and end (ns since the start), charged ns, whether it is hidden."""


def render_waterfall(row: dict[str, Any]) -> RenderableType:
    """Render one row of the budgets."""
    ttft = max(row["ttft"], 1)
    head = Text(
        f"{row['request_id']}  {row['mode']}  TTFT {row['ttft'] / 1e6:.2f} ms ({row['ttft_source']})"
        f"  trace {row['trace_id']}\n"
        f"prefill {row['p_engine'] or '?'} {row['p_id'] or ''}\n"
        f"decode  {row['d_engine'] or '?'} {row['d_id'] or ''}\n"
        f"{row['prompt_tokens'] or '?'} prompt tokens, {row['bytes'] or 0} bytes, {row['descriptors'] or 0}"
        f" descriptors, {row['x_ranks'] or 0} ranks (slowest: {row['x_rank'] or '-'})"
    )
    lines = [Text(f"{'segment':<24}{'ms':>10}{'at ms':>11}", "bold")]
    for name, begin, end, charged, hidden in list_bars(row):
        style = "dim" if hidden else STYLE_OF_CLASS[CLASS_OF_BAR[name]]
        label = f"hidden {name}" if hidden else name
        bar = draw(begin, end, ttft, "░" if hidden else "█")
        lines.append(Text(f"{label:<24}{charged / 1e6:>10.2f}{begin / 1e6:>11.2f}  {bar}  {CLASS_OF_BAR[name]}", style))
    lines.append(Text(f"{'residual':<24}{row['residual'] / 1e6:>10.2f}  (not told apart)"))
    late = f"late side of the pairing: {row['late_side']}\n" if row["late_side"] else ""
    tail = Text(
        late + f"why: {word_row(row)}\nthe landing is known within {row['uncertainty_ns'] / 1e6:.2f} ms;"
        f" milestones were out of order by {row['disorder'] / 1e6:.3f} ms"
    )
    return Group(head, *lines, tail)


def list_bars(row: dict[str, Any]) -> list[Bar]:
    """List the bars of a row in time order; charged ones first where they begin together."""
    chain = PUSH_CHAIN if row["mode"] == "push" else PULL_CHAIN
    zero, before = row["ttft_start"], row["ttft_start"]
    bars: list[Bar] = []
    for segment, milestone in chain:
        at = row[f"at_{milestone}"]
        if at is not None and before is not None:
            bars += _split(segment, before - zero, at - zero, row)
        before = at
    bars += _list_hidden(row, zero)
    order = {name: place for place, name in enumerate(BARS)}
    return sorted(bars, key=lambda bar: (bar[1], bar[4], order[bar[0]]))


def _split(segment: str, begin: int, end: int, row: dict[str, Any]) -> list[Bar]:
    """Split what the chain holds as one interval: the meeting of a push, and handshakes before the post."""
    if segment == "meeting":
        parts = ("pairing", "decode_admission", "handshake", "registration")
        lengths = [row["seg_pairing"] or 0, row["seg_decode_admission"] or 0, 0, row["seg_registration"] or 0]
        lengths[2] = max(0, end - begin - sum(lengths)) if row["seg_registration"] is not None else 0
        return _lay_out(parts, lengths, begin)
    if segment == "dispatch":
        posted = row["seg_dispatch"] or 0
        return _lay_out(("handshake", "dispatch"), [end - begin - posted, posted], begin)
    if segment == "prefill_ingress" and row.get("at_tried") is not None:
        tried = row["at_tried"] - row["ttft_start"]
        return [("prefill_ingress", begin, tried, tried - begin, False), ("readback", tried, end, end - tried, False)]
    if segment == "prefill_queue" and row.get("at_p_alloc") is not None:
        return _split_queue(begin, end, row)
    return [(segment, begin, end, end - begin, False)] if row[f"seg_{segment}"] is not None else []


def _split_queue(begin: int, end: int, row: dict[str, Any]) -> list[Bar]:
    """Split the prefill queue around its readback, and the readback into its parts where a worker told of them."""
    zero = row["ttft_start"]
    allocated, told = row["at_p_alloc"] - zero, row["at_p_told"] - zero
    lengths = [row[f"rbk_{part}"] or 0 for part in READBACK_PARTS]
    inner = _lay_out(tuple(f"readback {part}" for part in READBACK_PARTS), lengths, allocated)
    whole = [("readback", allocated, told, told - allocated, False)]
    bars = inner if sum(lengths) == told - allocated else whole
    around = [(begin, allocated), (told, end)]
    return [("prefill_queue", low, high, high - low, False) for low, high in around if high > low] + bars


def _lay_out(parts: tuple[str, ...], lengths: list[int], begin: int) -> list[Bar]:
    bars: list[Bar] = []
    for name, length in zip(parts, lengths, strict=True):
        if length > 0:
            bars.append((name, begin, begin + length, length, False))
        begin += length
    return bars


def _list_hidden(row: dict[str, Any], zero: int) -> list[Bar]:
    """List what D did while P still computed (push); its place is where it really was."""
    spans = {
        "decode_admission": (row["d_start"], row["d_alloc"]),
        "registration": (row["d_alloc"], row["reg_seen"]),
        "pairing": (row["reg_seen"], row["p_end"]),
    }
    return [
        (name, begin - zero, min(end, row["p_end"]) - zero, row[f"hid_{name}"], True)
        for name, (begin, end) in spans.items()
        if row[f"hid_{name}"] and begin is not None and end is not None and row["p_end"] is not None
    ]


def draw(begin: int, end: int, whole: int, mark: str) -> str:
    """Draw [begin, end] of [0, whole] as a bar of WIDTH characters; at least one mark."""
    first = min(max(int(begin / whole * WIDTH), 0), WIDTH - 1)
    last = min(max(round(end / whole * WIDTH), first + 1), WIDTH)
    return " " * first + mark * (last - first) + " " * (WIDTH - last)
