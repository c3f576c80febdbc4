"""Importing less: what a library takes if it is there, and no verb needs."""

import importlib
import sys
from typing import Any


def import_event_loop() -> None:
    """Import asyncio without TLS, which nothing here speaks: 6 ms of 45.

    For the process of a command alone: asyncio stays without it.
    """
    if "asyncio" in sys.modules or "ssl" in sys.modules:
        return  # somebody needs it
    modules: dict[str, Any] = sys.modules
    modules["ssl"] = None  # an import of it fails now, as where Python has none
    try:
        importlib.import_module("asyncio")
    finally:
        del modules["ssl"]
