"""What ``record sweep`` measures under load: cases of several seconds, each on all ranks at once.

``sustain``: products back to back, with random data and with zeros. ``mixture``: products between
kernels that memory limits, attention, and waiting. ``overlap``: products beside collectives and
copies. ``traincast calibrate --recorded`` reads clocks, power and slowdowns off them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PARTS = ("sustain", "mixture", "overlap")
SHAPES = {"square": (8192, 8192, 8192), "training": (8192, 28672, 4096)}
"""(m, n, k) of products; the second are tokens through both projections of Llama 3 8B's MLP."""
MIXTURES: Sequence[Mapping[str, float]] = (
    {"wait": 1.0},
    {"memory": 1.0},
    {"attention": 1.0},
    {"tensor": 0.5, "memory": 0.5},
    {"tensor": 0.75, "memory": 0.25},
    {"tensor": 0.25, "wait": 0.75},
    {"tensor": 0.5, "wait": 0.5},
    {"tensor": 0.75, "wait": 0.25},
)
"""Shares of the time, at full clock, that kinds of work take in turn."""
BESIDE = {1: ("d2h", "h2d"), 2: ("all_gather", "reduce_scatter", "all_reduce", "peer")}
"""What runs beside products, with one rank and with several."""
SECONDS = {"sustain": 20.0, "mixture": 5.0, "overlap": 8.0}
"""Seconds of a case; a shorter sweep shortens all of them alike."""
LEAST = 0.02  # share of its usual seconds that a case takes at least
REST = 2.0  # seconds before a case, in which the clock rises
TRIED = 2.0  # seconds, about, in which a case's works are tried one by one


class LoadCase(NamedTuple):
    """One case: its part, a name, the facts that a worker needs, and its seconds."""

    part: str
    name: str
    facts: Mapping[str, Any]
    seconds: float


def cases(parts: Sequence[str], ranks: int, seconds: float | None = None) -> list[LoadCase]:
    """Return the cases of some parts, in about ``seconds`` with rests, or in their usual time."""
    usual = [
        LoadCase(part, name, facts, SECONDS[part])
        for part in parts
        for name, facts in _of(part, ranks).items()
    ]
    rests, busy = (REST + TRIED) * len(usual), sum(one.seconds for one in usual)
    share = 1.0
    if seconds is not None and usual:
        share = min(1.0, max((seconds - rests) / busy, LEAST))
    return [one._replace(seconds=one.seconds * share) for one in usual]


def needed(some: Sequence[LoadCase]) -> float:
    """Return the seconds that cases take, with what comes before each."""
    return sum(one.seconds + REST + TRIED for one in some)


def _of(part: str, ranks: int) -> dict[str, dict[str, Any]]:
    """Return the facts of a part's cases by name, the most valuable first."""
    if part == "sustain":
        return {
            f"{shape}, {data}": {"shape": shape, "data": data}
            for data in ("random", "zeros")
            for shape in SHAPES
        }
    if part == "mixture":
        return {
            ", ".join(f"{work} {100 * share:.0f} %" for work, share in mix.items()): {"works": mix}
            for mix in MIXTURES
        }
    return {what: {"what": what} for what in BESIDE[min(ranks, 2)]}
