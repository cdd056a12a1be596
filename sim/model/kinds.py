"""The kinds of parts that layers consist of, by the names of their files."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.model.part import Part

LAYERS = Path(__file__).parent / "layers"
IMPLIED = ("latent", "convolution")
"""Kinds that a pattern does not name: full attention with model.mla, and model.blocks."""
ROLES = {"pattern": "attention", "feed_forward": "mlp"}
"""What the kinds of each list of a recipe call themselves (:attr:`sim.model.part.Part.name`)."""


@cache
def names(key: str) -> tuple[str, ...]:
    """Return the kinds that a list of a recipe's model may name besides "none".

    >>> names("feed_forward")
    ('dense', 'experts')
    """
    there = sorted(path.stem for path in LAYERS.glob("[a-z]*.py") if path.stem not in IMPLIED)
    return tuple(name for name in there if kind_of(name).name == ROLES[key])


@cache
def kind_of(name: str) -> type[Part]:
    """Return the class of a kind, from the file of its name in :mod:`sim.model.layers`."""
    found: type[Part] = importlib.import_module(f"sim.model.layers.{name}").Kind
    return found
