"""Pipeline parallelism: the steps of a plan on each rank, and the exchanges between stages.

One rank is lowered at a time. It issues *units* (a step, a send, a receive, a batched exchange, the
head and the tail of the training step). Each copy of a template is one unit, and a unit waits for
ops of other units of the rank. Units are numbered: the steps in plan order, then the exchanges,
then the head and the tails, one per update of the weights. The ops in the slots of a program are
found in :mod:`sim.builder.strategies.given`, for all units of a template at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sim.builder.slots import Slot, inputs
from sim.builder.stamp import Stamp
from sim.builder.strategies.given import Exchange, Given, Makers, Reference
from sim.builder.strategies.messages import Steps
from sim.builder.strategies.variants import Variant, variants
from sim.builder.template import Template
from sim.graph import Longs

HEAD = -10  # issue key before every step's
BEFORE = -1  # in place of a unit: the training step before, whose ops are numbered from 0


@dataclass
class Group:
    """Units of one template; arrays have one row per unit."""

    template: Template
    stage: int
    units: Longs
    microbatch: Longs
    update: Longs
    waits: Mapping[Slot, Reference]
    parts: Sequence[Longs] = ()
    key: int | None = None  # issue key of its unit, unless its kind determines that


@dataclass(frozen=True, eq=False)
class Placement:
    """The place of the ops of one rank and training step."""

    base: int  # index of the first op
    team: Callable[[str, int], int]
    """The first part of the rank's group on an axis, given the number of its parts there."""
    message_part: Longs  # the part of each message
    rank: int  # rank of the job
    step: int = 0  # number of training steps before
    before: Sequence[int] = ()  # the ops that end the step before


def lower(
    steps: Steps, rank: int, exchange: Exchange, make: Makers, to: Placement
) -> tuple[list[Stamp], int]:
    """Return the stamps of one rank, and the index of the next free op."""
    kinds = variants(steps, rank, exchange.gate)
    groups = [
        *_steps(steps, rank, exchange, make, kinds),
        *_exchanges(exchange, make, len(kinds), to.message_part, to.before),
        *_ends(steps, rank, exchange, make, kinds, to.before),
    ]
    count = sum(len(group.units) for group in groups)
    key, length = np.zeros(count, np.int64), np.zeros(count, np.int64)
    key[: len(kinds)] = 3 * np.arange(len(kinds)) + 1
    key[len(kinds) : len(kinds) + len(exchange)] = exchange.key
    for group in groups:
        length[group.units] = len(group.template)
        if group.key is not None:
            key[group.units] = group.key
    order = np.argsort(key, kind="stable")
    at: Longs = np.append(_begins(length, order, to.base), 0)  # the last entry is for BEFORE
    first = _first_parts(groups, order, to)
    stamps = [
        Stamp(
            group.template,
            to.rank,
            group.stage,
            at[group.units],
            group.microbatch.astype(np.int32),
            [first[axis][group.units] for axis in group.template.axes],
            {slot: at[units] + local for slot, (units, local) in group.waits.items()},
            group.parts,
            group.update + to.step,
        )
        for group in groups
    ]
    return stamps, to.base + int(length.sum())


def _first_parts(groups: Sequence[Group], order: Longs, to: Placement) -> dict[str, Longs]:
    """Return the first part of every unit by axis; a group's members issue the same in order."""
    counts: dict[str, Longs] = {}
    for group in groups:
        for axis, works in zip(group.template.axes, group.template.part_works, strict=True):
            of_axis = counts.setdefault(axis, np.zeros(len(order), np.int64))
            of_axis[group.units] = len(works)
    return {
        axis: _begins(count, order, to.team(axis, int(count.sum())))
        for axis, count in counts.items()
    }


def _begins(length: Longs, order: Longs, base: int) -> Longs:
    out = np.empty_like(length)
    out[order] = base + np.cumsum(length[order]) - length[order]
    return out


def _steps(
    steps: Steps, rank: int, exchange: Exchange, make: Makers, kinds: list[Variant]
) -> Iterator[Group]:
    mine = slice(int(steps.begins[rank]), int(steps.begins[rank + 1]))
    microbatch, update = steps.microbatch[mine], steps.update[mine]
    alike: dict[int, list[int]] = {}  # by variant: equal ones are one object
    for k, variant in enumerate(kinds):
        alike.setdefault(id(variant), []).append(k)
    given = Given.of(steps, rank, exchange, make, kinds)
    for members in alike.values():
        variant = kinds[members[0]]
        units, template = np.array(members, np.int64), make.step(variant)
        waits = {slot: given.ops(slot, members) for slot in template.slots}
        yield Group(template, variant.stage, units, microbatch[units], update[units], waits)


def _exchanges(
    exchange: Exchange, make: Makers, first: int, message_parts: Longs, before: Sequence[int]
) -> Iterator[Group]:
    """Yield the exchanges, one unit each; they start after the rank's previous training step."""
    alike: dict[tuple[str, str, int, int, int], list[int]] = {}
    stages = exchange.stage.tolist()
    earlier = ((BEFORE, before[0]),) if before else ()
    awaited = [waits or earlier for waits in exchange.waits]
    for k in range(len(exchange)):
        shape = (len(awaited[k]), len(exchange.messages[k]))
        kind = (exchange.name[k], exchange.stream[k], stages[k], *shape)
        alike.setdefault(kind, []).append(k)
    for (name, stream, stage, n_waits, n_parts), rows in alike.items():
        template = make.exchange(name, stream, exchange.messages[rows[0]][0], n_waits, n_parts)
        units = np.array(rows, np.int64)
        waits = np.array([awaited[k] for k in rows], np.int64).reshape(len(rows), n_waits, 2)
        messages = np.array([exchange.messages[k] for k in rows], np.int64)
        yield Group(
            template,
            stage,
            first + units,
            exchange.microbatch[units],
            exchange.update[units],
            {slot: (waits[:, w, 0], waits[:, w, 1]) for w, slot in enumerate(inputs(n_waits))},
            [message_parts[messages[:, m]] for m in range(n_parts)],
        )


def _ends(
    steps: Steps,
    rank: int,
    exchange: Exchange,
    make: Makers,
    kinds: list[Variant],
    before: Sequence[int],
) -> Iterator[Group]:
    """Yield the head, and a tail after the last gradients of each update."""
    head, none = len(kinds) + len(exchange), np.array([-1], np.int64)
    earlier = {Slot.input(k): (np.array([BEFORE]), op) for k, op in enumerate(before)}
    yield Group(make.head(len(before)), -1, np.array([head]), none, none + 1, earlier, key=HEAD)
    updates = steps.update[int(steps.begins[rank]) : int(steps.begins[rank + 1])]
    last = np.array([variant.place == "last" for variant in kinds])
    for u in range(int(updates.max()) + 1):
        made = np.flatnonzero(last & (updates == u)).tolist()
        ends = [(np.array([k]), op) for k in made for op in make.step(kinds[k]).lasts]
        waits = dict(zip(inputs(len(ends)), ends, strict=True))
        unit, key = np.array([head + 1 + u]), 3 * made[-1] + 3
        yield Group(make.tail(len(waits)), -1, unit, none, np.array([u]), waits, key=key)
