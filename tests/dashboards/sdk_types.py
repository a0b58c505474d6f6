"""Hold a dashboard's JSON against the types of the SDK's models: what is unknown or of another type is named.

The compiler knows more (grafana_schema.py), but needs npm. The models' own `from_json` takes any value.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any

from grafana_foundation_sdk.models import dashboard, stat, table, timeseries

OPTIONS = {"timeseries": timeseries.Options, "stat": stat.Options, "table": table.Options}
CUSTOM = {"timeseries": timeseries.FieldConfig, "table": table.FieldConfig}
MODELS = "grafana_foundation_sdk.models."
PLAIN = {str: (str,), int: (int,), float: (int, float), bool: (bool,)}


def find_mistyped(board: dict[str, Any]) -> list[str]:
    """Return what of a dashboard isn't of its model's type, each with its place in the JSON."""
    found = list(_walk({**board, "panels": []}, dashboard.Dashboard, "board"))
    for place, panel in enumerate(board["panels"]):
        name = f"panels[{place}]"
        if panel["type"] == "row":
            found += _walk(panel, dashboard.RowPanel, name)
            continue
        found += _walk(panel, dashboard.Panel, name)
        found += _walk(panel.get("options", {}), OPTIONS.get(panel["type"], object), f"{name}.options")
        custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
        found += _walk(custom, CUSTOM.get(panel["type"], object), f"{name}.fieldConfig.defaults.custom")
    return found


def _walk(value: Any, kind: Any, place: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        if value is None and types.NoneType in arguments:
            return
        tries = [list(_walk(value, one, place)) for one in arguments if one is not types.NoneType]
        yield from min(tries, key=len)
    elif origin is list and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, arguments[0], f"{place}[{number}]")
    elif origin is dict and isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, arguments[1], f"{place}.{key}")
    elif origin is typing.Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        known = arguments or [one.value for one in kind]
        if value not in known:
            yield f"{place}: {value!r} is none of {known}"
    elif kind in PLAIN:
        # To Python a truth value is a number too.
        if not isinstance(value, PLAIN[kind]) or (isinstance(value, bool) and kind is not bool):
            yield f"{place}: {value!r} is no {kind.__name__}"
    elif getattr(kind, "__module__", "").startswith(MODELS) and isinstance(value, dict):
        yield from _walk_model(value, kind, place)
    elif origin in {list, dict} or getattr(kind, "__module__", "").startswith(MODELS):
        yield f"{place}: {value!r} is no {kind}"


def _walk_model(value: dict[str, Any], model: type, place: str) -> Iterator[str]:
    fields = _list_fields(model)
    for key, item in value.items():
        if key not in fields:
            yield f"{place}.{key} is unknown"
        else:
            yield from _walk(item, fields[key], f"{place}.{key}")


@cache
def _list_fields(model: type) -> dict[str, Any]:
    """Return the JSON names of a model's attributes with their types; a few keep their underscores."""
    fields = {}
    for attribute, kind in typing.get_type_hints(model).items():
        name = attribute.removesuffix("_val")
        fields[name] = fields[re.sub(r"_(\w)", lambda match: match[1].upper(), name)] = kind
    return fields
