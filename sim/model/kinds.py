"""The kinds of parts that layers consist of, by the names of their files."""

from __future__ import annotations

import importlib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.model.part import Part


@cache
def kind_of(name: str) -> type[Part]:
    """Return the class of a kind, from the file of its name in :mod:`sim.model.layers`."""
    found: type[Part] = importlib.import_module(f"sim.model.layers.{name}").Kind
    return found
