import subprocess
import sys

import pytest

from instrumented_connectors.identity import (
    base_id,
    derive_span_id,
    derive_trace_id,
    parse_traceparent,
    request_key,
    request_trace_context,
)

TRACEPARENT = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.mark.parametrize(
    ("request_id", "key"),
    [
        ("cmpl-abc-0-0123abcd", "abc"),
        ("chatcmpl-abc-0123abcd", "abc"),
        ("1_cmpl-abc-0-0123abcd", "abc"),
        ("cmpl-looks-like-deadbeef-3-0123abcd", "looks-like-deadbeef"),
        ("chatcmpl-9f-deadbeef-0123abcd", "9f-deadbeef"),
        ("cmpl-abc-0", "abc"),
        ("something else", "something else"),
        # The header's UTF-8 bytes, read as Latin-1 by the engine's HTTP server.
        ("cmpl-" + "ünï 코드".encode().decode("latin-1") + "-0-0123abcd", "ünï 코드"),
        ("cmpl-ünï 코드-0-0123abcd", "ünï 코드"),
        ("", ""),
    ],
)
def test_the_clients_id_is_recovered(request_id: str, key: str) -> None:
    assert request_key(request_id) == key


def test_both_legs_of_a_push_have_one_base() -> None:
    assert base_id("cmpl-abc-0-0123abcd") == base_id("cmpl-abc-0-ffffffff") != base_id("cmpl-abc-1-0123abcd")


def test_derived_ids_are_the_same_in_every_process() -> None:
    code = "from instrumented_connectors.identity import *; print(derive_trace_id('abc'), derive_span_id('P0', 'abc'))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert other == [str(derive_trace_id("abc")), str(derive_span_id("P0", "abc"))]
    assert 0 < derive_trace_id("abc") < 1 << 128
    assert 0 < derive_span_id("P0", "abc") < 1 << 64
    assert derive_span_id("P0", "1abc") != derive_span_id("P01", "abc")


@pytest.mark.parametrize(
    "header",
    [None, 7, "", "00-xyz", "00-" + "0" * 32 + "-" + "b" * 16 + "-01", "ff-" + "a" * 32 + "-" + "b" * 16 + "-01"],
)
def test_a_bad_traceparent_is_no_traceparent(header: object) -> None:
    assert parse_traceparent(header) is None


def test_trace_headers_win_over_transfer_parameters() -> None:
    other = "00-" + "c" * 32 + "-" + "d" * 16 + "-00"
    context = request_trace_context({"TraceParent": TRACEPARENT}, {"traceparent": other})
    assert context == (int("a" * 32, 16), int("b" * 16, 16), 1)
    assert request_trace_context(None, {"traceparent": other}) == (int("c" * 32, 16), int("d" * 16, 16), 0)
    assert request_trace_context(None, None) is None
