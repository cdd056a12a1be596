"""Pipeline parallelism: the steps of a plan on each rank, and the exchanges between stages.

One rank is lowered at a time. It issues *units* (a step, a send, a receive, a batched exchange, the
head and the tail of the training step); each copy of a template is one unit, and what a unit waits
for is an op of another unit of the rank. Units are numbered: the steps in plan order, then the
exchanges, then head and tail. The slots of a step (see :mod:`sim.program`) are its inputs, the last
kernel before it on its rank, and, for the first of a stage, the ops of the head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from sim.strategies.messages import Longs, Steps
from sim.template import Stamp, Template

HEAD, TAIL = -10, 1 << 60  # issue keys before and after every step's


class Variant(NamedTuple):
    """Which template a step uses."""

    stage: int
    kind: str  # F B I W
    place: str  # "first" or "last" of its stage and kind on its rank, or ""
    inputs: int  # how many ops it waits for before it starts
    fused: bool = False  # with the other member of its pair


Reference = tuple[Longs, Longs | int]  # per copy a unit; and which of its ops


@dataclass
class Group:
    """Units of one template; arrays have a row per unit."""

    template: Template
    stage: int
    units: Longs
    microbatch: Longs
    waits: Sequence[Reference] = ()
    parts: Sequence[Longs] = ()


@dataclass(frozen=True, eq=False)
class Exchange:
    """The p2p ops of one rank, a row each. Lists are ragged: what differs from op to op."""

    key: Longs  # where it is issued: 3 k before step k, 3 k + 2 after it
    name: list[str]
    stream: list[str]
    stage: Longs
    microbatch: Longs
    waits: list[tuple[tuple[int, int], ...]]  # (step of the rank, row of its outputs)
    messages: list[tuple[int, ...]]  # one part each
    gate: Longs  # of each step of the rank: the op here that brings its input, or -1

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True, eq=False)
class Makers:
    """Templates on demand, for one rank; see :mod:`sim.build`."""

    step: Callable[[Variant], Template]
    exchange: Callable[[str, str, int, int, int], Template]  # name, stream, message, waits, parts
    head: Template
    tail: Callable[[int], Template]  # of how many ops it waits for


def variants(steps: Steps, rank: int, gate: Longs) -> list[Variant]:
    """The variant of each step of a rank; ``gate`` says which inputs an exchange brings."""
    mine = slice(int(steps.begins[rank]), int(steps.begins[rank + 1]))
    stage, kind = steps.stage[mine], steps.kind[mine]
    place = np.full(len(stage), "", "U5")
    for s in np.unique(stage):
        place[np.flatnonzero((stage == s) & (kind == "F"))[:1]] = "first"
        place[np.flatnonzero((stage == s) & ((kind == "W") | (kind == "B")))[-1:]] = "last"
    fused = (steps.first != steps.last)[mine]
    inputs = [len(row) for row in _awaited(steps, rank, gate)]
    columns = (stage.tolist(), kind.tolist(), place.tolist(), inputs, fused.tolist())
    return [Variant(*row) for row in zip(*columns, strict=True)]


Awaited = tuple[int, int]  # an exchange and -1, or a step of the rank and one of its outputs


def _awaited(steps: Steps, rank: int, gate: Longs) -> list[list[Awaited]]:
    """What each step of a rank waits for; the first of a block for the inputs of all its steps."""
    begin, end = steps.begins[rank : rank + 2].tolist()
    source = steps.source[begin:end]
    local = np.where((source >= 0) & (steps.rank[source] == rank), source - begin, -1)
    own = [
        [(exchange, -1)] if exchange >= 0 else [(step, 0), (step, 1)] if step >= 0 else []
        for exchange, step in zip(gate.tolist(), local.tolist(), strict=True)
    ]
    leads = (steps.first == steps.index)[begin:end].tolist()
    stop = np.where(leads, steps.last[begin:end], steps.index[begin:end]) + 1
    return [list(chain(*own[k:last])) for k, last in enumerate(stop.tolist())]


def lower(
    steps: Steps,
    rank: int,
    exchange: Exchange,
    make: Makers,
    base: int,
    team_parts: int,
    message_parts: Longs,
    other_parts: Callable[[Template], Sequence[int]],
    job_rank: int,
) -> tuple[list[Stamp], int, int]:
    """Stamps of one rank whose ops begin at ``base``; also the next free op and team part.

    ``message_parts`` numbers the part of each message, ``other_parts`` those of a template's groups
    that other teams take part in.
    """
    kinds = variants(steps, rank, exchange.gate)
    groups = [
        *_steps(steps, rank, exchange, make, kinds),
        *_exchanges(exchange, make, len(kinds), message_parts),
        *_ends(exchange, make, kinds),
    ]
    count = len(kinds) + len(exchange) + 2
    key, length = np.zeros(count, np.int64), np.zeros(count, np.int64)
    parts = np.zeros(count, np.int64)
    key[: len(kinds)] = 3 * np.arange(len(kinds)) + 1
    key[len(kinds) : -2] = exchange.key
    key[-2:] = HEAD, TAIL
    for group in groups:
        length[group.units] = len(group.template)
        parts[group.units] = len(group.template.part_work)
    order = np.argsort(key, kind="stable")
    at = _begins(length, order, base)
    part_at = _begins(parts, order, team_parts)
    stamps = [
        Stamp(
            group.template,
            job_rank,
            group.stage,
            at[group.units],
            group.microbatch.astype(np.int32),
            part_at[group.units],
            [at[units] + local for units, local in group.waits],
            [*group.parts, *(np.array([p]) for p in other_parts(group.template))],
        )
        for group in groups
    ]
    return stamps, base + int(length.sum()), team_parts + int(parts.sum())


def _begins(length: Longs, order: Longs, base: int) -> Longs:
    out = np.empty_like(length)
    out[order] = base + np.cumsum(length[order]) - length[order]
    return out


def _steps(
    steps: Steps, rank: int, exchange: Exchange, make: Makers, kinds: list[Variant]
) -> Iterator[Group]:
    begin = int(steps.begins[rank])
    rows: dict[Variant, list[int]] = {}
    for k, variant in enumerate(kinds):
        rows.setdefault(variant, []).append(k)
    awaited = _awaited(steps, rank, exchange.gate)
    for variant, members in rows.items():
        units = np.array(members, np.int64)
        waits = [
            _reference([awaited[k][j] for k in members], kinds, make) for j in range(variant.inputs)
        ]
        waits.append(_previous(units, kinds, make, len(kinds) + len(exchange)))
        if variant.place == "first":
            head = np.full(len(units), len(kinds) + len(exchange))
            waits += [(head, k) for k in range(len(make.head))]
        yield Group(
            make.step(variant), variant.stage, units, steps.microbatch[begin + units], waits
        )


def _reference(awaited: Sequence[Awaited], kinds: Sequence[Variant], make: Makers) -> Reference:
    """As units and their ops: an exchange has one, a step's outputs may be fewer than asked for."""
    units = [unit + len(kinds) if which < 0 else unit for unit, which in awaited]
    ops = []
    for unit, which in awaited:
        outputs = (0,) if which < 0 else make.step(kinds[unit]).outputs
        ops.append(outputs[which % len(outputs)])
    return np.array(units, np.int64), np.array(ops, np.int64)


def _previous(units: Longs, kinds: Sequence[Variant], make: Makers, head: int) -> Reference:
    """The last kernel of the step before each, of the head before the first."""
    before = units - 1
    first = make.head.lasts[0] if make.head.lasts else 0
    last = [make.step(kinds[k]).lasts[0] if k >= 0 else first for k in before]
    return np.where(before >= 0, before, head), np.array(last, np.int64)


def _exchanges(
    exchange: Exchange, make: Makers, first: int, message_parts: Longs
) -> Iterator[Group]:
    alike: dict[tuple[str, str, int, int, int], list[int]] = {}
    stages = exchange.stage.tolist()
    for k in range(len(exchange)):
        shape = (len(exchange.waits[k]), len(exchange.messages[k]))
        kind = (exchange.name[k], exchange.stream[k], stages[k], *shape)
        alike.setdefault(kind, []).append(k)
    for (name, stream, stage, n_waits, n_parts), rows in alike.items():
        template = make.exchange(name, stream, exchange.messages[rows[0]][0], n_waits, n_parts)
        units = np.array(rows, np.int64)
        waits = np.array([exchange.waits[k] for k in rows], np.int64).reshape(len(rows), n_waits, 2)
        messages = np.array([exchange.messages[k] for k in rows], np.int64)
        yield Group(
            template,
            stage,
            first + units,
            exchange.microbatch[units],
            [(waits[:, w, 0], waits[:, w, 1]) for w in range(n_waits)],
            [message_parts[messages[:, m]] for m in range(n_parts)],
        )


def _ends(exchange: Exchange, make: Makers, kinds: list[Variant]) -> Iterator[Group]:
    head = len(kinds) + len(exchange)
    none = np.array([-1], np.int64)
    yield Group(make.head, -1, np.array([head]), none)
    waits: list[Reference] = []
    for k, variant in enumerate(kinds):
        if variant.place == "last":
            waits += [(np.array([k]), op) for op in make.step(variant).lasts]
    yield Group(make.tail(len(waits)), -1, np.array([head + 1]), none, waits)
