"""Drop-in replacements of vLLM's NIXL connectors that record where every millisecond of a hand-over went.

Load them under their stock names with ``"kv_connector_module_path": "instrumented_connectors"``. Importing this package
has no side effects and needs no vLLM; the connector classes are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import Any

__all__ = ["NixlBidirectionalConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import connectors

    return getattr(connectors, name)
