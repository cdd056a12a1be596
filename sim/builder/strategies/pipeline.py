"""Pipeline parallelism: the steps of a plan on each rank, and the exchanges between stages.

One rank is lowered at a time. It issues *units* (a step, a send, a receive, a batched exchange, the
head and the tail of the training step). Each copy of a template is one unit, and a unit waits for
ops of other units of the rank. Units are numbered: the steps in plan order, then the exchanges,
then the head and the tails, one per update of the weights. The ops in the slots of a program
(:mod:`sim.builder.slots`) are found here, for all units of a template at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.builder import slots
from sim.builder.slots import Slot, inputs
from sim.builder.stamp import Stamp
from sim.builder.strategies.messages import Longs, Steps
from sim.builder.template import Template

HEAD = -10  # issue key before every step's
FIRST = -1  # in place of a step: none comes before it, only the head
BEFORE = -1  # in place of a unit: the training step before, whose ops are numbered from 0


class Variant(NamedTuple):
    """The key of the template that a step uses."""

    stage: int
    kind: str  # F B I W
    place: str  # "first" of its stage on its rank, "last" of it for an update, or ""
    inputs: int  # how many ops it waits for before it starts
    before: int = 1  # how many kernels come right before it: 2 after a shared pair
    pair: str = ""  # "fused" with its pair's other member, "beside" its pair's forward, or ""
    gathered: bool = False  # its stage's sharded parameters are gathered already


Reference = tuple[Longs, Longs | int]  # per copy: a unit, and which of its ops


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
class Exchange:
    """The p2p ops of one rank, one row each; lists have rows of different lengths."""

    key: Longs  # issue key: 3 k before step k, 3 k + 2 after it
    name: list[str]
    stream: list[str]
    stage: Longs
    microbatch: Longs
    update: Longs
    waits: list[tuple[tuple[int, int], ...]]  # (step of the rank, row of its outputs)
    messages: list[tuple[int, ...]]  # each is one part
    gate: Longs  # per step of the rank: the op here that brings its input, or -1

    def __len__(self) -> int:
        return len(self.key)


@dataclass(frozen=True, eq=False)
class Makers:
    """Templates on demand, for one rank; see :mod:`sim.builder.training_step`."""

    step: Callable[[Variant], Template]
    exchange: Callable[[str, str, int, int, int], Template]  # name, stream, message, waits, parts
    head: Callable[[int], Template]  # number of ops that it waits for
    tail: Callable[[int], Template]  # number of ops that it waits for


def variants(steps: Steps, rank: int, gate: Longs) -> list[Variant]:
    """Return the variant of each step of a rank; ``gate`` says which inputs an exchange brings."""
    mine = slice(int(steps.begins[rank]), int(steps.begins[rank + 1]))
    stage, kind, update = steps.stage[mine], steps.kind[mine], steps.update[mine]
    place = np.full(len(stage), "", "U5")
    for s in np.unique(stage):
        place[np.flatnonzero((stage == s) & (kind == "F"))[:1]] = "first"
        gradient = np.flatnonzero((stage == s) & ((kind == "W") | (kind == "B")))
        place[gradient[np.append(np.diff(update[gradient]) != 0, True)]] = "last"
    beside = steps.beside[mine]
    pair = np.where(steps.first != steps.done, "fused", "")[mine]
    pair = np.where(beside, "beside", pair)
    inputs = [len(row) for row in _awaited(steps, rank, gate)]
    before = [len(row) for row in _kernels_before(beside)]
    columns = (stage.tolist(), kind.tolist(), place.tolist(), inputs, before, pair.tolist(),
               steps.gathered[mine].tolist())  # fmt: skip
    return [Variant(*row) for row in zip(*columns, strict=True)]


def _kernels_before(beside: NDArray[np.bool_]) -> list[list[int]]:
    """Return the steps whose last kernels each step of a rank comes after, or FIRST.

    Both members of a shared pair come after what is before the pair, and what follows comes after
    both.
    """
    out: list[list[int]] = []
    flags = beside.tolist()
    for k in range(len(flags)):
        last = k - 1 - flags[k]  # the step before, or before its pair
        out.append([last - 1, last] if last >= 0 and flags[last] else [last])
    return out


Awaited = tuple[int, int]  # an exchange and -1, or a step of the rank and one of its outputs


def _awaited(steps: Steps, rank: int, gate: Longs) -> list[list[Awaited]]:
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
    rows: dict[Variant, list[int]] = {}
    for k, variant in enumerate(kinds):
        rows.setdefault(variant, []).append(k)
    given = _Given.of(steps, rank, exchange, make, kinds)
    for variant, members in rows.items():
        units, template = np.array(members, np.int64), make.step(variant)
        waits = {slot: given.ops(slot, members) for slot in template.slots}
        yield Group(template, variant.stage, units, microbatch[units], update[units], waits)


@dataclass(frozen=True, eq=False)
class _Given:
    """The ops in the slots of the steps of one rank."""

    kinds: Sequence[Variant]
    make: Makers
    awaited: Sequence[Sequence[Awaited]]  # what each step waits for
    before: Sequence[Sequence[int]]  # steps whose last kernels come before each step
    forward: Sequence[int]  # per step: the forward of its stage and microbatch
    gone: Sequence[int]  # per step: the last forward but one before it
    ahead: Sequence[int]  # per step: the step before the last backward before it
    ends: _Ends

    @classmethod
    def of(
        cls, steps: Steps, rank: int, exchange: Exchange, make: Makers, kinds: Sequence[Variant]
    ) -> _Given:
        """Find the steps that others come after."""
        mine = slice(int(steps.begins[rank]), int(steps.begins[rank + 1]))
        keys = [(v.stage, m) for v, m in zip(kinds, steps.microbatch[mine].tolist(), strict=True)]
        forward = {key: k for k, key in enumerate(keys) if kinds[k].kind == "F"}
        return cls(
            kinds,
            make,
            _awaited(steps, rank, exchange.gate),
            _kernels_before(steps.beside[mine]),
            [forward[key] for key in keys],
            _earlier(kinds, "F", 2),
            [max(k - 1, FIRST) for k in _earlier(kinds, "BI", 1)],
            _Ends.of(kinds, make, len(kinds) + len(exchange)),
        )

    def ops(self, slot: Slot, members: Sequence[int]) -> Reference:
        """Return the op in a slot of each of these steps, which are of one variant."""
        match slot:
            case Slot("input", number):
                return self._reference([self.awaited[k][number] for k in members])
            case Slot("before", number):
                return self.ends.kernel([self.before[k][number] for k in members])
            case Slot("head", number):
                return np.full(len(members), self.ends.head), number
            case slots.GONE:
                return self.ends.copied([self.gone[k] for k in members])
            case slots.SENT:
                return self.ends.copied([self.forward[k] for k in members])
            case slots.AHEAD:
                return self.ends.kernel([self.ahead[k] for k in members])
        raise AssertionError(f"nothing stands in {slot}")

    def _reference(self, awaited: Sequence[Awaited]) -> Reference:
        """Return units and ops; an exchange has one op, and a step's outputs repeat if too few."""
        units = [unit + len(self.kinds) if which < 0 else unit for unit, which in awaited]
        ops = []
        for unit, which in awaited:
            outputs = (0,) if which < 0 else self.make.step(self.kinds[unit]).outputs
            ops.append(outputs[which % len(outputs)])
        return np.array(units, np.int64), np.array(ops, np.int64)


class _Ends(NamedTuple):
    """The last kernel and the last copy to the host of every step of a rank, and of the head."""

    head: int
    kernels: Longs  # one more than steps: the last is the head's, for FIRST
    copies: Longs  # the kernel for steps without copies, and for the head

    @classmethod
    def of(cls, kinds: Sequence[Variant], make: Makers, head: int) -> _Ends:
        """Collect those of a rank's steps, from each template once."""
        made = {variant: make.step(variant) for variant in dict.fromkeys(kinds)}
        first = make.head(0).lasts[0] if len(make.head(0)) else 0
        kernels = np.array([*(made[v].lasts[0] for v in kinds), first], np.int64)
        sent = np.array([*(made[v].sent for v in kinds), -1], np.int64)
        return cls(head, kernels, np.where(sent >= 0, sent, kernels))

    def kernel(self, steps: Sequence[int]) -> Reference:
        """Return the last kernel of each of these steps; FIRST gives that of the head."""
        units = np.array(steps, np.int64)
        return np.where(units == FIRST, self.head, units), self.kernels[units]

    def copied(self, steps: Sequence[int]) -> Reference:
        """Return the last copy to the host of each of these steps, or else their last kernel."""
        units, _ = self.kernel(steps)
        return units, self.copies[np.array(steps, np.int64)]


def _earlier(kinds: Sequence[Variant], which: str, back: int) -> list[int]:
    """Return, for each step, the ``back``-th last step of these kinds before it, or FIRST."""
    out, found = list[int](), [FIRST] * back
    for k, variant in enumerate(kinds):
        out.append(found[-back])
        if variant.kind in which:
            found.append(k)
    return out


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
