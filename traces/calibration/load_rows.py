"""The rows of `record sweep sustain mixture overlap`, checked, as arrays."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from schedules.input_error import InputError
from sim.graph import Floats

Row = Mapping[str, Any]
T = TypeVar("T")


class Sustained(NamedTuple):
    """Products back to back on one GPU: how many were done by when, and watts after the half."""

    shape: str
    data: str
    rank: int
    launches: Floats
    seconds: Floats
    watts: float | None
    hertz: Floats  # of the SMs, at times from rest on
    limit: float | None  # watts


class Part(NamedTuple):
    """One kind of work in a mixture: a run's seconds from rest, those of that burst, and then."""

    alone: float
    burst: float
    seconds: float
    total: float


class Mixed(NamedTuple):
    """Kinds of work that took turns on one GPU, and the watts that it drew."""

    rank: int
    works: Mapping[str, Part]
    watts: float | None


class Beside(NamedTuple):
    """Products beside a transfer: by how much they were slower, and the seconds of a transfer."""

    what: str
    rank: int
    ranks: int
    bytes: float
    slowdown: float
    transfer: float


class Load(NamedTuple):
    """All that was measured under load."""

    sustained: Sequence[Sustained]
    mixed: Sequence[Mixed]
    beside: Sequence[Beside]


def rows(path: Path, parts: Mapping[str, Sequence[Row]]) -> Load:
    """Return the rows of a sweep by part; those of other parts are left out.

    Raises InputError, which names the row, for one that lacks something or holds no such numbers.
    """
    return Load(
        _each(path, parts, "sustain", _sustained),
        _each(path, parts, "mixture", _mixed),
        _each(path, parts, "overlap", _beside),
    )


def _each(
    path: Path, parts: Mapping[str, Sequence[Row]], part: str, of: Callable[[Row], T]
) -> list[T]:
    out = []
    for number, row in enumerate(parts.get(part, ()), 1):
        try:
            out.append(of(row))
        except (KeyError, TypeError, ValueError, IndexError, ArithmeticError) as error:
            why = f"has no {error.args[0]}" if isinstance(error, KeyError) else f"({error})"
            raise InputError(f"{path} is damaged: row {number} of {part} {why}") from None
    return out


def _sustained(row: Row) -> Sustained:
    launches, seconds = (np.array(row[key], np.float64) for key in ("launches", "seconds"))
    for column in (launches, seconds):
        if len(column) < 3 or not (np.isfinite(column).all() and (np.diff(column) > 0).all()):
            raise ValueError("launches and seconds have to rise")
    if len(launches) != len(seconds) or not launches[0] * seconds[0] > 0:
        raise ValueError("launches and seconds are not alike")
    hertz = np.array(row["samples"].get("sm_hz", ()), np.float64)
    return Sustained(
        str(row["shape"]), str(row["data"]), int(row["rank"]), launches, seconds,
        _watts(row, float(seconds[-1]) / 2), hertz, _positive(row["limit_w"]) if "limit_w" in row
        else None,
    )  # fmt: skip


def _mixed(row: Row) -> Mixed:
    works = {
        str(one["work"]): Part(
            *(_positive(one[key]) for key in ("alone_s", "burst_s", "s", "total_s"))
        )
        for one in row["works"]
    }
    return Mixed(int(row["rank"]), works, _watts(row, _positive(row["settled_s"])))


def _beside(row: Row) -> Beside:
    alone, both = (_positive(row[key][1]) for key in ("alone_s", "together_s"))
    slower = _positive(row["slowdown"][0])
    transfer = alone * _positive(row["slowdown"][1] or 1.0) / _positive(row["others"])
    if both <= 0.0:
        raise ValueError("no time passed")
    return Beside(
        str(row["what"]), int(row["rank"]), int(row["ranks"]), _positive(row["bytes"]), slower,
        transfer,
    )  # fmt: skip


def _watts(row: Row, after: float) -> float | None:
    """Return the mean power from a time on; None where the sensors told nothing."""
    samples = row["samples"]
    if not samples:
        return None
    t, watts = (np.array(samples[key], np.float64) for key in ("t", "power_w"))
    late = watts[t >= after]
    if not len(late) or not np.isfinite(late).all():
        return None
    return float(late.mean())


def _positive(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no number")
    if not 0.0 < value < math.inf:
        raise ValueError(f"{value!r} is not above 0")
    return float(value)
