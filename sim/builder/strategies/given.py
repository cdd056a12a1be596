"""What stands in the slots of a rank's steps (:mod:`sim.builder.slots`): ops of its other units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.builder import slots
from sim.builder.slots import Slot
from sim.builder.strategies.messages import Steps
from sim.builder.strategies.variants import FIRST, Awaited, Variant, awaited, kernels_before
from sim.builder.template import Template
from sim.graph import Longs

Reference = tuple[Longs, Longs | int]  # per copy: a unit, and which of its ops


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


@dataclass(frozen=True, eq=False)
class Given:
    """The ops in the slots of the steps of one rank."""

    kinds: Sequence[Variant]
    make: Makers
    awaited: Sequence[Sequence[Awaited]]  # what each step waits for
    before: Sequence[Sequence[int]]  # steps whose last kernels come before each step
    forward: Sequence[int]  # per step: the forward of its stage and microbatch
    gone: Sequence[int]  # per step: the last forward but one before it
    ahead: Sequence[int]  # per step: the step before the last backward before it
    ends: Ends

    @classmethod
    def of(
        cls, steps: Steps, rank: int, exchange: Exchange, make: Makers, kinds: Sequence[Variant]
    ) -> Given:
        """Find the steps that others come after."""
        mine = slice(int(steps.begins[rank]), int(steps.begins[rank + 1]))
        keys = [(v.stage, m) for v, m in zip(kinds, steps.microbatch[mine].tolist(), strict=True)]
        forward = {key: k for k, key in enumerate(keys) if kinds[k].kind == "F"}
        return cls(
            kinds,
            make,
            awaited(steps, rank, exchange.gate),
            kernels_before(steps.beside[mine]),
            [forward[key] for key in keys],
            _earlier(kinds, "F", 2),
            [max(k - 1, FIRST) for k in _earlier(kinds, "BI", 1)],
            Ends.of(kinds, make, len(kinds) + len(exchange)),
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


class Ends(NamedTuple):
    """The last kernel and the last copy to the host of every step of a rank, and of the head."""

    head: int
    kernels: Longs  # one more than steps: the last is the head's, for FIRST
    copies: Longs  # the kernel for steps without copies, and for the head

    @classmethod
    def of(cls, kinds: Sequence[Variant], make: Makers, head: int) -> Ends:
        """Collect those of a rank's steps, from each template once."""
        some = {id(variant): variant for variant in kinds}  # equal ones are one object
        made = {key: make.step(variant) for key, variant in some.items()}
        first = make.head(0).lasts[0] if len(make.head(0)) else 0
        kernels = np.array([*(made[id(v)].lasts[0] for v in kinds), first], np.int64)
        sent = np.array([*(made[id(v)].sent for v in kinds), -1], np.int64)
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
