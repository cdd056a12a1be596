"""Modules that take long to import and that few commands need: imported when they are first used.

A type checker sees the usual import, and everything else what :func:`late` returns::

    if TYPE_CHECKING:
        import pandas as pd
    else:
        pd = late("pandas")
"""

from __future__ import annotations

import importlib
from typing import Any


class _Late:
    """Stands for a module, and imports it when one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        """Return the attribute of the module, and keep it."""
        found = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, found)
        return found


def late(name: str) -> Any:
    """Return what stands for a module until it is needed.

    >>> late("math").sqrt(4.0)
    2.0
    """
    return _Late(name)
