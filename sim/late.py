"""Libraries that take long to import and that few commands need: imported when first used.

``from sim.late import pd`` gives a type checker the module itself, and everything else what stands
for it until one of its attributes is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


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


if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from rich import cells, console, markup, table
    from scipy import optimize, sparse
else:
    nx, pd = late("networkx"), late("pandas")
    cells, console = late("rich.cells"), late("rich.console")
    markup, table = late("rich.markup"), late("rich.table")
    optimize, sparse = late("scipy.optimize"), late("scipy.sparse")

__all__ = ["cells", "console", "late", "markup", "nx", "optimize", "pd", "sparse", "table"]
