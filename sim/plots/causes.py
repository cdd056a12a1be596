"""The causes of seconds without computing, or of the seconds of a critical path: a bar for each."""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from matplotlib.figure import Figure

from sim.plots.stacked import THIN, Look, stacked
from sim.plots.style import KERNELS, LOST, OTHER, TRANSFERS

HATCHES = {"warm_up": "////", "drain": "\\\\\\\\", "straggler": "xxxx"}
EXPOSED, COMMUNICATION, COMPUTE = "exposed_", "communication ", "compute "


def causes(
    rows: Mapping[str, Mapping[str, float]],
    *,
    ends: Mapping[str, str] | None = None,
    title: str = "",
) -> Figure:
    """Draw the seconds of each row by cause: those of bubbles, or of critical paths.

    ``rows`` has the seconds of each cause, by name of a row. At the end of a row stands its text in
    ``ends``, or else its seconds.
    """
    rows = {name: _brief(row) for name, row in rows.items()}
    longest = max((fsum(row.values()) for row in rows.values()), default=1.0)
    there = {
        name for row in rows.values() for name, value in row.items() if value >= THIN * longest
    }
    looks = {name: _look(name) for name in sorted(there, key=_place)}
    return stacked(rows, looks, ends=ends, title=title)


def _brief(row: Mapping[str, float]) -> dict[str, float]:
    """Return a row by short causes: gemm for "compute gemm", tp for "communication tp"."""
    return {k.removeprefix(COMPUTE).removeprefix(COMMUNICATION): v for k, v in row.items()}


def _look(cause: str) -> Look:
    if cause in LOST:
        return Look(LOST[cause], HATCHES.get(cause, ""))
    return Look(KERNELS.get(cause) or TRANSFERS.get(cause.removeprefix(EXPOSED), OTHER))


def _place(cause: str) -> tuple[int, int, str]:
    """Return a key that sorts kernels, then transfers, then lost time, by the palette."""
    name = cause.removeprefix(EXPOSED)
    for k, order in enumerate(([*KERNELS], [*TRANSFERS], [*LOST])):
        if name in order:
            return k, order.index(name), cause
    return 1, len(TRANSFERS), cause
