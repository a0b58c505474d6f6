"""Kinds of spans -> OTLP JSON texts, column-wise: literals and columns are put together by polars."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

from .spans import Kind

SPANS_PER_LINE = 400
"""Spans of one process in a line: some 300 KB, below what a collector's file receiver reads as one line (1 MiB)."""


def encode_kind(kind: Kind) -> pl.DataFrame:
    """Return process, end and text (one OTLP JSON object) of every span."""
    columns: dict[str, Any] = {"process": kind.process, "begin": kind.begin, "end": kind.end}
    columns |= {"trace": kind.trace, "span": kind.span}
    pieces: list[pl.Expr | str] = ['{"traceId":"', pl.col("trace"), '","spanId":"', pl.col("span")]
    if kind.parent is not None:
        columns["parent"] = kind.parent
        pieces += ['","parentSpanId":"', pl.col("parent")]
    flags = 768 if kind.parent is not None else 256
    pieces += [
        f'","flags":{flags},"name":"{kind.name}","kind":{kind.number},"startTimeUnixNano":"',
        pl.col("begin"), '","endTimeUnixNano":"', pl.col("end"), '","attributes":[',
    ]  # fmt: skip
    for number, (key, values) in enumerate(kind.attributes.items()):
        opening, column, closing = _encode_attribute(f"a{number}", key, values, columns)
        opening = opening if number == 0 else f",{opening}"
        if column is None:
            pieces.append(opening)
        elif columns[f"a{number}"].null_count():
            # A null makes the whole attribute null, and a null piece is left out.
            pieces.append(pl.concat_str(pl.lit(opening), column, pl.lit(closing)).fill_null(""))
        else:
            pieces += [opening, column, closing]
    pieces.append('],"status":{}}')
    frame = pl.DataFrame(columns)
    text = pl.concat_str(pl.lit(piece) if isinstance(piece, str) else piece for piece in _merge(pieces))
    return frame.select("process", "end", text=text)


def _merge(pieces: list[pl.Expr | str]) -> list[pl.Expr | str]:
    merged: list[pl.Expr | str] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    return merged


def _encode_attribute(name: str, key: str, values: Any, columns: dict[str, Any]) -> tuple[str, pl.Expr | None, str]:
    """Return what stands before the value, the value's column (None: it is constant) and what stands after."""
    head = f'{{"key":"kv_transfer.{key}","value":'
    if isinstance(values, (str, bool, int)):
        return head + _encode_constant(values) + "}", None, ""
    series = (
        values if isinstance(values, pl.Series) else pl.Series(values.tolist() if values.dtype == object else values)
    )
    columns[name] = series
    if series.dtype in (pl.String, pl.Null):
        return head + '{"stringValue":"', pl.col(name), '"}}'
    if series.dtype == pl.Boolean:
        return head + '{"boolValue":', pl.col(name).cast(pl.String).str.to_lowercase(), "}}"
    return head + '{"intValue":"', pl.col(name), '"}}'


def _encode_constant(value: str | bool | int) -> str:
    if isinstance(value, bool):
        return json.dumps({"boolValue": value})
    return json.dumps({"intValue": str(value)} if isinstance(value, int) else {"stringValue": value})


def encode_resource(process: dict[str, Any]) -> tuple[str, str]:
    """Return what stands before and after the spans of a process in a line; process: a row of Fleet.processes."""
    attributes = {
        "service.name": process["service"], "service.instance.id": process["engine"], "host.name": process["host"],
        "process.pid": process["pid"], "kvlens.role": process["role"], "kvlens.mode": process["mode"],
        "kvlens.schema": "1", "kvlens.version": "synthetic", "vllm.version": "synthetic", "nixl.version": "synthetic",
        "kvlens.clock.boot_id": process["boot_id"], "kvlens.clock.anchor_unix_ns": process["anchor_unix_ns"],
        "kvlens.clock.anchor_perf_ns": process["anchor_perf_ns"], "kvlens.synthetic": True,
    }  # fmt: skip
    pairs = ",".join(f'{{"key":"{key}","value":{_encode_constant(value)}}}' for key, value in attributes.items())
    return (
        f'{{"resourceSpans":[{{"resource":{{"attributes":[{pairs}]}},'
        '"scopeSpans":[{"scope":{"name":"kvlens","version":"synthetic"},"spans":['
    ), "]}]}]}\n"


def cut_lines(texts: pl.DataFrame) -> pl.DataFrame:
    """Put the spans of each process together, in order of their end: process, spans and text of every line."""
    ordered = texts.sort("process", "end", maintain_order=True)
    line = pl.int_range(pl.len()).over("process") // SPANS_PER_LINE
    return (
        ordered.with_columns(line=line)
        .group_by("process", "line", maintain_order=True)
        .agg(pl.len().alias("spans"), pl.col("text").str.join(","))
    )
