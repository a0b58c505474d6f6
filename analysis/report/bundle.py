"""The chart library as one script: Vega, Vega-Lite and vega-embed from the installed vl-convert wheel."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import KvlensError

PACKAGE = "vl-convert-python"


def read_bundle() -> str:
    """Return the script (0.9 MB), from the user's cache after the first time, as making it takes seconds.

    Raises KvlensError when vl-convert is not installed.
    """
    try:
        installed = version(PACKAGE)
        vl_convert = import_module("vl_convert")
    except (PackageNotFoundError, ImportError) as error:
        raise KvlensError(f"kvlens report needs {PACKAGE}: {error}", f"pip install {PACKAGE}") from error
    cache = find_cache() / f"vega-{installed}.js"
    with suppress(OSError):
        return cache.read_text(encoding="utf-8")
    script = str(vl_convert.javascript_bundle())
    with suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        scratch = cache.with_suffix(f".{os.getpid()}")
        scratch.write_text(script, encoding="utf-8")
        scratch.replace(cache)
    return script


def find_cache() -> Path:
    """Find the user's cache folder of kvlens (XDG base directories)."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvlens"
