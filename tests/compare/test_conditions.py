"""What counts as a condition, and which difference is declared, noted or undeclared."""

import pytest

from analysis.compare.conditions import DECLARED, NOTED, UNDECLARED, diff_conditions, flatten, is_same_workload

BASE = {
    "schema": 1, "created": "2026-01-01", "mode": "pull", "versions": {"vllm": "0.32.0", "kvlens": "0.1"},
    "connector": {"kv_connector": "NixlPullConnector", "engine_id": "P0"}, "model": {"name": "m", "layers": 4},
    "routing": {"policy": "round-robin", "url": "http://127.0.0.1:1"}, "workload": {"seed": 1, "rate": 2},
    "workloads": [{"seed": 1, "rate": 2, "input_lens": [1, 2]}],
    "engines": [
        {"role": "prefill", "id": "P0", "pid": 1, "log": "/tmp/a", "cores": [0], "connector": {"kv_connector": "A"}},
        {"role": "decode", "id": "D0", "pid": 2, "tensor_parallel": 1},
        {"role": "decode", "id": "D1", "pid": 3, "tensor_parallel": 1},
    ],
}  # fmt: skip


def diff(vary=(), observed=None, **changes):
    return {one.key: one.status for one in diff_conditions(BASE, {**BASE, **changes}, vary, observed or {})}


def test_incidental_names_are_no_conditions():
    engines = [{**engine, "id": "other", "pid": 99, "log": "/b"} for engine in BASE["engines"]]
    assert diff(created="2027", routing={"policy": "round-robin", "url": "http://127.0.0.1:2"}, engines=engines) == {}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"mode": "push"}, {"mode": DECLARED}),
        ({"connector": {"kv_connector": "NixlPushConnector"}}, {"connector.kv_connector": DECLARED}),
        ({"versions": {"vllm": "0.31.0", "kvlens": "0.1"}}, {"versions.vllm": UNDECLARED}),
        ({"versions": {"vllm": "0.32.0", "kvlens": "0.2"}}, {"versions.kvlens": NOTED}),
        ({"model": {"name": "n", "layers": 4}}, {"model.name": UNDECLARED}),
        ({"engines": BASE["engines"][:2]}, {"engines.decode1.tensor_parallel": UNDECLARED}),
        ({"faults": {"wire": {"ms": 80}}}, {"faults.wire.ms": UNDECLARED}),
        ({"anything": 3}, {"anything": UNDECLARED}),
        ({"anything": False}, {"anything": NOTED}),
        (
            {"engines": [{**BASE["engines"][0], "connector": {"kv_connector": "B"}}, *BASE["engines"][1:]]},
            {"engines.prefill0.connector.kv_connector": DECLARED},
        ),
    ],
)
def test_status_of_a_difference(changes, found):
    assert diff(**changes) == found


def test_what_is_varied_is_declared():
    assert diff(vary=["model"], model={"name": "n", "layers": 5}) == {"model.name": DECLARED, "model.layers": DECLARED}


def test_what_the_data_shows_counts_too():
    """A TTFT read from the router is not comparable with one read from the engines alone."""
    assert diff(observed={"ttft_source": ("router", "engine")}) == {"ttft_source": UNDECLARED}
    assert diff(observed={"ttft_source": ("router", "router")}) == {}


def test_the_last_workload_is_not_said_twice():
    keys = dict(flatten(BASE))
    assert keys["workload.input_lens"] == (1, 2)
    assert not any(key.startswith("workloads") for key in keys)
    assert dict(flatten({"workload": {"seed": 3}})) == {"workload.seed": 3}


def test_same_workload_needs_both_to_say_so():
    assert is_same_workload(BASE, BASE)
    assert not is_same_workload({}, {})
    assert not is_same_workload(BASE, {**BASE, "workloads": [{**BASE["workloads"][0], "seed": 2}]})
    assert is_same_workload({"workload": {"seed": 1}}, {"workload": {"seed": 1}})
