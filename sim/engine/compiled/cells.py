"""What compiled functions read of half cells, which hold 32 bits."""

from __future__ import annotations

from numpy import int64

from sim.engine.compiled.fields import AMONG, FIRST_OP, STEP
from sim.engine.compiled.jit import inner
from sim.machine.network import Places


@inner
def number(h: Places, at: int) -> int:
    """Return the number in a half cell, with the 64 bits that functions take."""
    return int64(h[at])  # type: ignore[return-value]  # Numba's own


@inner
def part_turn(h: Places, i: Places, p: int) -> int:
    """Return which of the events of an instant a part's own is; see :mod:`sim.engine.uses`."""
    return i[STEP] * h[p + FIRST_OP] + h[p + AMONG]
