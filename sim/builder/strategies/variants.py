"""Variants: which steps of a rank share a template, and which steps each of them comes after."""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from sim.builder.strategies.messages import Steps
from sim.graph import Bools, Longs

FIRST = -1  # in place of a step: none comes before it, only the head


class Variant(NamedTuple):
    """The key of the template that a step uses."""

    stage: int
    kind: str  # F B I W
    place: str  # "first" of its stage on its rank, "last" of it for an update, or ""
    inputs: int  # how many ops it waits for before it starts
    before: int = 1  # how many kernels come right before it: 2 after a shared pair
    pair: str = ""  # "fused" with its pair's other member, "beside" its pair's forward, or ""
    gathered: bool = False  # its stage's sharded parameters are gathered already


def variants(steps: Steps, rank: int, gate: Longs) -> list[Variant]:
    """Return the variant of each step of a rank; ``gate`` says which inputs an exchange brings."""
    mine = slice(int(steps.begins[rank]), int(steps.begins[rank + 1]))
    stage, kind, update = steps.stage[mine], steps.kind[mine], steps.update[mine]
    place = np.full(len(stage), "", "U5")
    for s in {*stage.tolist()}:
        place[np.flatnonzero((stage == s) & (kind == "F"))[:1]] = "first"
        gradient = np.flatnonzero((stage == s) & ((kind == "W") | (kind == "B")))
        place[gradient[np.append(np.diff(update[gradient]) != 0, True)]] = "last"
    beside = steps.beside[mine]
    pair = np.where(steps.first != steps.done, "fused", "")[mine]
    pair = np.where(beside, "beside", pair)
    inputs = _inputs(steps, rank, gate).tolist()
    before = [len(row) for row in kernels_before(beside)]
    columns = (stage.tolist(), kind.tolist(), place.tolist(), inputs, before, pair.tolist(),
               steps.gathered[mine].tolist())  # fmt: skip
    made: dict[tuple[Any, ...], Variant] = {}  # equal variants are one object
    rows = zip(*columns, strict=True)
    return [made.get(row) or made.setdefault(row, Variant(*row)) for row in rows]


def _inputs(steps: Steps, rank: int, gate: Longs) -> Longs:
    """Return how many ops each step of a rank waits for, see :func:`awaited`."""
    begin, end = steps.begins[rank : rank + 2].tolist()
    source = steps.source[begin:end]
    local = (source >= 0) & (steps.rank[source] == rank)
    own = np.where(gate >= 0, 1, np.where(local, 2, 0))
    until = np.append(0, np.cumsum(own))
    found: Longs = until[steps.last[begin:end] + 1] - until[steps.first[begin:end]]
    return found


def kernels_before(beside: Bools) -> list[list[int]]:
    """Return the steps whose last kernels each step of a rank comes after, or FIRST.

    Both members of a shared pair come after what is before the pair, and what follows comes after
    both.
    """
    out: list[list[int]] = []
    if not beside.any():
        return [[k - 1] for k in range(len(beside))]
    flags = beside.tolist()
    for k in range(len(flags)):
        last = k - 1 - flags[k]  # the step before, or before its pair
        out.append([last - 1, last] if last >= 0 and flags[last] else [last])
    return out


Awaited = tuple[int, int]  # an exchange and -1, or a step of the rank and one of its outputs


def awaited(steps: Steps, rank: int, gate: Longs) -> list[list[Awaited]]:
    """Return what each step of a rank waits for: its own input first, then those of its block."""
    begin, end = steps.begins[rank : rank + 2].tolist()
    source = steps.source[begin:end]
    local = np.where((source >= 0) & (steps.rank[source] == rank), source - begin, -1)
    own = [
        [(exchange, -1)] if exchange >= 0 else [(step, 0), (step, 1)] if step >= 0 else []
        for exchange, step in zip(gate.tolist(), local.tolist(), strict=True)
    ]
    first, last = steps.first[begin:end].tolist(), steps.last[begin:end].tolist()
    return [
        own[k] if a == b else [*own[k], *chain(*own[a:k], *own[k + 1 : b + 1])]
        for k, (a, b) in enumerate(zip(first, last, strict=True))
    ]
