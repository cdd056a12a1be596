"""Measures what steps consisted of: operators by name, shapes and phase, and collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from math import fsum
from typing import NamedTuple

import numpy as np

from schedules.input_error import InputError
from sim.analysis.intervals import Intervals, covered_before, union
from sim.graph import Floats
from traces.cpu_steps.run import Leaf, Moved
from traces.cpu_steps.steps import Part, moving
from traces.cpu_steps.trace import Mark, Shapes


class Own(NamedTuple):
    """One run of an operator that computes or copies; nanoseconds."""

    row: int  # in the rank's trace
    name: str
    inside: str
    own: float  # its time without what it called
    start: float  # when its first piece starts
    end: float  # when its last piece ends


def owns(part: Part) -> Iterator[Own]:
    """Yield the operators of one rank's step that compute, in the order of their begins."""
    pieces: dict[int, list[tuple[float, float]]] = defaultdict(list)
    owners = part.of.owner[part.math_piece].tolist()
    for owner, *span in zip(owners, part.math.start.tolist(), part.math.end.tolist(), strict=True):
        pieces[owner].append((span[0], span[1]))
    for owner, spans in sorted(pieces.items()):
        own, start = fsum(b - a for a, b in spans), spans[0][0]
        inside = _inside(part, start)
        yield Own(part.rows[owner], part.names[owner], inside, own, start, spans[-1][1])


def _inside(part: Part, instant: float) -> str:
    if any(a <= instant < b for a, b in part.updates):
        return "optimizer"
    return "forward" if instant < part.backward else "backward"


Seen = dict[tuple[str, Shapes, str], list[tuple[float, bool]]]
"""By name, shapes and phase, for each operator that ran: own seconds, and whether it was alone."""


def leaves(seen: Seen, runs: int) -> tuple[Leaf, ...]:
    """Return operators grouped by name, shapes and phase, from ``runs`` steps of ranks."""
    return tuple(sorted(_leaf(key, some, runs) for key, some in seen.items()))


def noise(seen: Seen, shares: int = 40) -> tuple[float, ...]:
    """Return own seconds over their median, of operators alone: means of equal shares."""
    ratio, weight = [np.empty(0)], [np.empty(0)]
    for some in seen.values():
        own = np.array([seconds for seconds, alone in some if alone])
        if len(own) > 1 and (middle := float(np.median(own))):
            ratio.append(own / middle)
            weight.append(np.full(len(own), middle))
    x, w = np.concatenate(ratio), np.concatenate(weight)
    order = np.argsort(x, kind="stable")
    edges = np.linspace(0.0, 1.0, shares + 1)[1:-1]
    total = w.sum() or 1.0
    cut = np.searchsorted(np.cumsum(w[order]) / total, edges if len(x) else [])
    parts = zip(np.split(x[order], cut), np.split(w[order], cut), strict=True)
    return tuple(round(float(np.average(a, weights=b)), 4) for a, b in parts if len(a))


def seen(steps: Sequence[Sequence[Part]], shapes: Mapping[int, Sequence[Shapes]]) -> Seen:
    """Return all operators that computed; ``shapes`` are those of each rank's operators."""
    found: Seen = defaultdict(list)
    for parts in steps:
        end = max(part.end for part in parts)
        moves = moving([mark for part in parts for mark in part.collectives], end)
        for part in parts:
            some = [*owns(part)]
            alone = _alone(some, moves)
            for one, quiet in zip(some, alone, strict=True):
                key = (one.name, shapes[part.rank][one.row], one.inside)
                found[key].append((one.own / 1e9, quiet))
    return found


def _alone(some: Sequence[Own], moves: Intervals) -> list[bool]:
    """Return, for each, whether no collective of any rank was under way beside it."""
    spans = np.array([(one.start, one.end) for one in some], float).reshape(-1, 2)
    beside: Floats = covered_before(moves, spans[:, 1]) - covered_before(moves, spans[:, 0])
    return [not seconds for seconds in beside.tolist()]


def _leaf(key: tuple[str, Shapes, str], seen: Sequence[tuple[float, bool]], runs: int) -> Leaf:
    quiet = [own for own, alone in seen if alone]
    mean = round(float(np.mean([own for own, _ in seen])), 12)
    median = round(float(np.median(quiet)), 12) if quiet else float("nan")
    return Leaf(*key, len(seen) / runs, mean, median, len(quiet))


def moved(parts: Sequence[Part]) -> Iterator[Moved]:
    """Yield the collectives of one step, over all ranks, in the order of the first rank's begins.

    Raises InputError where ranks did not take part in the same ones.
    """
    members = [_numbered(part.collectives) for part in parts]
    if any(one.keys() != members[0].keys() for one in members):
        raise InputError(
            f"ranks ran different collectives in step {parts[0].step}: "
            f"{', '.join(str(sum(1 for _ in one)) for one in members)} of them; "
            "give traces of all ranks of one group"
        )
    computing = [union(part.math.start, part.math.end) for part in parts]
    order = sorted(members[0], key=lambda key: members[0][key].start)
    for number, key in enumerate(order):
        yield _one(parts[0].step, number, [one[key] for one in members], computing)


def _one(step: int, number: int, marks: Sequence[Mark], computing: Sequence[Intervals]) -> Moved:
    begin, end = max(m.start for m in marks), max(m.end for m in marks)
    at = np.array([begin, end], float)
    beside = [float(np.diff(covered_before(one, at))[0]) for one in computing]
    return Moved(
        step, number, marks[0].collective, marks[0].bytes, begin / 1e9, end / 1e9,
        min(m.start for m in marks) / 1e9, round(float(np.mean(beside)) / 1e9, 12),
    )  # fmt: skip


def _numbered(marks: Sequence[Mark]) -> dict[tuple[str, float, int], Mark]:
    """Return marks by kind and number of those before; a hop's sends and receives are one."""
    out: dict[tuple[str, float, int], Mark] = {}
    seen: dict[tuple[str, float, str], int] = defaultdict(int)
    for mark in marks:
        what = (mark.collective, mark.bytes, mark.called)
        key = (mark.collective, mark.bytes, seen[what])
        seen[what] += 1
        other = out.get(key, mark)
        start, end = min(mark.start, other.start), max(mark.end, other.end)
        out[key] = mark._replace(start=start, end=end)
    return out
