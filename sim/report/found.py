"""The findings of analyses as columns of a page: critical path, idle intervals, memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sim.graph import Ints, Longs
from sim.late import pd
from sim.memory.curve import Curve
from sim.report.pack import Ticks

_ROWS = 100_000  # of idle intervals and of the critical path, the longest
_POINTS = 4_000  # of a memory curve


def of_path(of: pd.DataFrame | None, where: Longs, clock: Ticks) -> dict[str, Any]:
    """Return the stretches of the critical path on ranks of the page: block, from, to, cause."""
    if of is None:
        return {}
    of = _longest(of[where[of["op"].to_numpy(np.int64)] >= 0])
    return {
        "path_block": where[of["op"].to_numpy(np.int64)],
        "path_start": clock.of(of["start"].to_numpy(np.float64)),
        "path_end": clock.of(of["end"].to_numpy(np.float64)),
        "path_cause": pd.Categorical(of["cause"], categories(of, "cause")).codes,
    }


def of_bubbles(of: pd.DataFrame | None, where: Longs, clock: Ticks, kept: Ints) -> dict[str, Any]:
    """Return idle intervals by rank and start: the rank's place, from, to, cause, awaited block."""
    if of is None:
        return {}
    of = _longest(of[of["rank"].isin(kept)]).sort_values(["rank", "start"], kind="stable")
    op = of["op"].to_numpy(np.int64)
    return {
        "bubble_rank": np.searchsorted(kept, of["rank"].to_numpy(np.int64)),
        "bubble_start": clock.of(of["start"].to_numpy(np.float64)),
        "bubble_end": clock.of(of["end"].to_numpy(np.float64)),
        "bubble_cause": pd.Categorical(of["cause"].astype(str), categories(of, "cause")).codes,
        "bubble_block": np.where(op >= 0, where[op], -1),
    }


def _longest(of: pd.DataFrame) -> pd.DataFrame:
    if len(of) <= _ROWS:
        return of
    longest = np.argsort(-(of["end"] - of["start"]).to_numpy(np.float64), kind="stable")[:_ROWS]
    return of.iloc[np.sort(longest)]


def categories(of: pd.DataFrame | None, column: str) -> list[str]:
    """Return the distinct values of a column, in the order of their codes."""
    return [] if of is None else sorted({str(value) for value in of[column]})


def of_memory(of: Mapping[int, Curve], clock: Ticks, kept: Ints) -> dict[str, Any]:
    """Return the memory curves one behind another, and where each begins."""
    curves = [_thinned(of[r]) for r in kept.tolist() if r in of]
    sizes = [0, *(len(curve.seconds) for curve in curves)]
    seconds = np.concatenate([np.empty(0), *(curve.seconds for curve in curves)])
    held = np.concatenate([np.empty(0), *(curve.bytes for curve in curves)])
    return {"memory_from": np.cumsum(sizes), "memory_at": clock.of(seconds), "memory": held}


def _thinned(curve: Curve) -> Curve:
    """Return the most bytes held in each of many slices of the rows, so that the peak stays."""
    n = len(curve.seconds)
    if n <= _POINTS:
        return curve
    begins = np.unique(np.linspace(0, n - 1, _POINTS).astype(np.int64))
    return Curve(curve.seconds[begins], np.maximum.reduceat(curve.bytes, begins))
