"""Switches that go off with what they need, when an override takes it away."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from sim import strategies

_NEEDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "parallelism.overlap_param_gather": ("parallelism.zero", (0, 3, None)),
}
"""By switch: the key that it needs, and the values of that key with which it cannot be on."""


def follow(overrides: Mapping[str, object]) -> dict[str, object]:
    """Return the overrides with the switches that they take the need of, off unless they are given.

    So a recipe with sequence parallelism can be varied over ``tp`` from 1 on. A recipe that states
    both is refused as before.

    >>> follow({"parallelism.zero": 0})
    {'parallelism.overlap_param_gather': False, 'parallelism.zero': 0}
    """
    needs = [_NEEDS, *strategies.declared("NEEDS")]
    off = {
        switch: False
        for switch, (key, without) in chain(*(of.items() for of in needs))
        if key in overrides and overrides[key] in without
    }
    return {**off, **overrides}
