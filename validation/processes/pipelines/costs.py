"""Measured costs of a process that runs a pipeline: distributions, and how message sizes count.

They are kept as TOML beside this file, one per class of machine; each names its recordings.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.files import write_text
from sim.graph import Floats

FOLDER = Path(__file__).parent / "frozen"
ARRIVAL = "arrival"
STEPS = 20  # a distribution is kept as that many bins of equal probability


@dataclass(frozen=True)
class Quantiles:
    """A cost in seconds, or a ratio: means of equal shares of its ordered samples, ascending.

    So it has the samples' mean, and draws from it are samples without their extremes.
    """

    bins: tuple[float, ...] = (0.0,)

    @property
    def mean(self) -> float:
        """The expectation."""
        return fsum(self.bins) / len(self.bins)


def spread(samples: Sequence[float] | Floats, floor: float = 0.0) -> Quantiles:
    """Return the distribution of some samples, none below ``floor``.

    >>> spread([3.0, 1.0]).bins, spread([3.0, 1.0]).mean
    ((1.0, 3.0), 2.0)
    """
    ordered = np.sort(np.maximum(np.asarray(samples, np.float64), floor))
    if not len(ordered):
        return Quantiles()
    edges = np.linspace(0.0, len(ordered), min(STEPS, len(ordered)) + 1)
    summed = np.interp(
        edges, np.arange(len(ordered) + 1), np.concatenate([[0.0], np.cumsum(ordered)])
    )
    return Quantiles(tuple(np.round(np.diff(summed) / np.diff(edges), 9).tolist()))


class Size(NamedTuple):
    """The seconds that a message of so many bytes costs more than an empty one."""

    bytes: float
    wire: float  # until it arrives, once both ends are posted
    copy: float  # in the sender's call, which copies


@dataclass(frozen=True)
class Costs:
    """All that a process does beside the work of its stages."""

    name: str
    spreads: Mapping[str, Quantiles]
    """See :mod:`.gaps`; and ``isend``, ``irecv``; ``arrival``, until a message is there once both
    ends are posted; ``over``, what a timed compute takes beyond its time; or ``F``, ``B``, ``I``,
    ``W``, seconds of a layer."""
    sizes: tuple[Size, ...] = ()
    bytes: float = 0.0  # of the messages from which the spreads were taken
    sources: Mapping[str, str] = field(default_factory=dict)  # file name: SHA-256
    busier: float = 1.0
    """The factor by which all spreads are stretched: the sources' timed steps over those that were
    traced too. It is assumed that other runs differ from the traced steps by the same factor."""
    work: float = 0.0  # seconds of a core that a timed compute takes before it sleeps
    model: Mapping[str, int] = field(default_factory=dict)
    """Width, sequence, microbatch and heads of real layers."""

    def of(self, name: str) -> Quantiles:
        """Return a cost; nothing, if the sources did not show it."""
        return self.spreads.get(name, Quantiles())

    def more(self, size: float) -> Size:
        """Return what a message costs more than those measured; linear between sizes and beyond."""
        if len(self.sizes) < 2:
            return Size(size, 0.0, 0.0)
        (_, wire, copy), (_, wire0, copy0) = (self._at(of) for of in (size, self.bytes))
        return Size(size, max(wire - wire0, 0.0), max(copy - copy0, 0.0))

    def _at(self, size: float) -> Size:
        table = self.sizes
        k = next((k for k, row in enumerate(table[1:-1], 1) if size <= row.bytes), len(table) - 1)
        a, b = table[k - 1], table[k]
        x = (size - a.bytes) / (b.bytes - a.bytes)
        return Size(size, a.wire + x * (b.wire - a.wire), a.copy + x * (b.copy - a.copy))


def names() -> list[str]:
    """List the classes of machines that have frozen costs."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(path: Path) -> Costs:
    """Read frozen costs. Raises InputError for a file that holds none."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
        shown = found["spreads_us"].items()
        spreads = {key: Quantiles(tuple(map(_seconds, us))) for key, us in shown}
        sizes = [Size(n, _seconds(w), _seconds(c)) for n, w, c in found["messages"]["sizes"]]
        return Costs(
            str(found["name"]), spreads, tuple(sizes), float(found["messages"]["bytes"]),
            dict(found["sources"]), float(found["busier"]), _seconds(found["work_us"]),
            dict(found["model"]),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError, OSError) as error:
        raise InputError(f"{path} holds no costs of a process: {error}") from error


HEAD = """\
# Costs of a process that runs a pipeline, fitted by {command}
# spreads_us: means of equal shares of the ordered samples, microseconds
# busier: all spreads are stretched by that, from traced steps to all that were timed
# work_us: of a core, that a timed compute takes before it sleeps
# messages.sizes: bytes; microseconds more until it is there; of the sender's call
"""


def save(costs: Costs, path: Path, command: str) -> None:
    """Write costs, with the command that made them, as TOML in microseconds."""
    sizes = [[s.bytes, _us(s.wire), _us(s.copy)] for s in costs.sizes]
    tables = {
        "sources": costs.sources,
        "model": costs.model,
        "messages": {"bytes": costs.bytes, "sizes": sizes},
        "spreads_us": {key: [_us(s) for s in of.bins] for key, of in costs.spreads.items()},
    }
    plain = {"name": costs.name, "busier": round(costs.busier, 4), "work_us": _us(costs.work)}
    lines = [HEAD.format(command=command), *map(_line, plain.items())]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *map(_line, table.items())]
    write_text(path, "\n".join([*lines, ""]))


def _line(item: tuple[str, object]) -> str:
    """Return a key and its value, which JSON writes as TOML does."""
    key, value = item
    return f"{key if key.isidentifier() else json.dumps(key)} = {json.dumps(value)}"


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def _seconds(us: float) -> float:
    return us * 1e-6
