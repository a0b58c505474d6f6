"""Ids of synthetic requests, as vLLM and the router would make them, and random span ids."""

from __future__ import annotations

import binascii

import numpy as np
import polars as pl

from instrumented_connectors.identity import derive_trace_id

from .fleet import Times


class Identities:
    """Ids of all requests of a run; every method takes row numbers of the run."""

    def __init__(self, requests: int, seed: int, rng: np.random.Generator) -> None:
        self._keys = pl.Series([f"syn-{seed}-{number:07d}" for number in range(requests)])
        self._traces = pl.Series([f"{derive_trace_id(key):032x}" for key in self._keys])
        suffixes = hexlify(rng.bytes(8 * requests), 16)
        engine_ids = pl.DataFrame({"key": self._keys, "suffix": suffixes})
        self._prefill, self._decode, self._router = (
            engine_ids.select(pl.format(text, "key", pl.col("suffix").str.slice(start, 8)))[:, 0]
            for text, start in (("cmpl-{}-0-{}", 0), ("cmpl-{}-0-{}", 8), ("router-{}-{}", 0))
        )

    def keys(self, rows: Times) -> pl.Series:
        """Client-visible ids."""
        return self._keys[rows]

    def traces(self, rows: Times) -> pl.Series:
        """Trace ids, derived from the keys as every process derives them."""
        return self._traces[rows]

    def prefill_ids(self, rows: Times) -> pl.Series:
        """P's internal request ids."""
        return self._prefill[rows]

    def decode_ids(self, rows: Times) -> pl.Series:
        """D's internal request ids."""
        return self._decode[rows]

    def router_ids(self, rows: Times) -> pl.Series:
        """The router's own ids."""
        return self._router[rows]

    @staticmethod
    def draw(rng: np.random.Generator, count: int) -> pl.Series:
        """Random span ids."""
        return hexlify(rng.bytes(8 * count), 16)

    @staticmethod
    def draw_traces(rng: np.random.Generator, count: int) -> pl.Series:
        """Random trace ids, of spans that belong to no request."""
        return hexlify(rng.bytes(16 * count), 32)


def hexlify(data: bytes, digits: int) -> pl.Series:
    """Cut random bytes into hexadecimal texts of so many digits, without a Python object each."""
    import pyarrow as pa

    count = 2 * len(data) // digits
    offsets = np.arange(count + 1, dtype=np.int64) * digits
    texts = pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(binascii.hexlify(data)))
    series = pl.from_arrow(texts)
    assert isinstance(series, pl.Series)
    return series
