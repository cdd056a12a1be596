"""Whether what a user's file puts into a program is of the kinds that a program has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import numpy as np

from sim.builder.program import Collective, Kernel
from sim.graph import PHASES, Compute, Copy, Fixed, Host, Memory
from sim.machine.collectives import ALGORITHMS

WHOLE = (int, np.integer)
NUMBER = (*WHOLE, float)
LAYERS = 2**15
"""The number of layers that a graph's column holds."""
WORKS = (Compute, Copy, Host, Fixed)
WORDS = ("kind", "dtype", "by", "direction", "dimension")
"""The fields of a work that are text; the others are sizes."""


def fault(item: Kernel | Collective) -> str:
    """Return which field of an item is wrong, what it is and what it must be; "" if none is."""
    of_kind = COLLECTIVE if isinstance(item, Collective) else KERNEL
    for name, (right, must) in {**BOTH, **of_kind}.items():
        value = getattr(item, name)
        if not right(value):
            return f"{name} = {str(value)[:80]!r}; it must be {must}"
    return ""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _size(value: Any) -> bool:
    return isinstance(value, NUMBER) and bool(0 <= value < inf)


def _memory(value: Any) -> bool:
    return isinstance(value, Sequence) and all(
        isinstance(m, Memory) and _text(m.category) and isinstance(m.bytes, NUMBER)
        and abs(m.bytes) < inf and m.at in ("start", "end")
        for m in value
    )  # fmt: skip


def _work(value: Any) -> bool:
    if not isinstance(value, WORKS):
        return False
    shape = getattr(value, "shape", ())
    whole = isinstance(shape, tuple) and all(isinstance(n, WHOLE) and _size(n) for n in shape)
    others = {name: part for name, part in value._asdict().items() if name != "shape"}
    return whole and all(_text(of) if name in WORDS else _size(of) for name, of in others.items())


Field = tuple[Callable[[Any], bool], str]
BOTH: dict[str, Field] = {
    "name": (_text, "text"),
    "phase": (lambda of: of in PHASES[1:], "F, R, I, W, O or B"),
    "layer": (
        lambda of: isinstance(of, WHOLE) and bool(-1 <= of < LAYERS),
        "a layer's number, or -1",
    ),
    "needs": (
        lambda of: isinstance(of, Sequence) and all(isinstance(need, WHOLE) for need in of),
        "positions of earlier items",
    ),
    "memory": (_memory, 'a tuple of Memory(category, bytes, "start" or "end")'),
    "stream": (_text, "text"),
    "ahead": (lambda of: isinstance(of, bool), "True or False"),
}
KERNEL: dict[str, Field] = {
    "work": (_work, "Compute, Copy, Host or Fixed with sizes of at least 0 and words in text"),
}
COLLECTIVE: dict[str, Field] = {
    "bytes": (_size, "a number of at least 0"),
    "collective": (lambda of: of in [*ALGORITHMS], f"one of {', '.join(ALGORITHMS)}"),
    "algorithm": (_text, "text"),
}
"""What each field of an item must be: whether a value is so, and in words."""
