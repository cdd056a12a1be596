"""Templates: one program lowered to columns once; :mod:`sim.builder.stamp` copies them.

No function here loops over the ops of a graph: only over the items of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.builder.program import Collective, Item, Program
from sim.builder.slots import Need, Slot, inputs
from sim.graph import PHASES, Bools, Communication, Copy, Floats, Ints, Longs

COMPUTE = "compute"
TO_HOST, FROM_HOST = "d2h", "h2d"  # the streams of the copy engines
OF_NORM = {"stage_norm": "model", "norm_in": "model", "norm_out": "model"}
"""The dimension of axes over which the norm of the gradients is summed stage by stage."""
BESIDE = " 2"
"""What ends the names of streams of programs that run beside another on their rank."""

PHASE = {phase: k for k, phase in enumerate(PHASES)}


class Numbering(dict[Hashable, int]):
    """Distinct values, numbered in the order in which they come.

    >>> number = Numbering()
    >>> number["b"], number["a"], number["b"], [*number]
    (0, 1, 0, ['b', 'a'])
    """

    def __missing__(self, value: Hashable) -> int:
        """Give the next number to a value that is new."""
        self[value] = number = len(self)
        return number

    def of(self, values: Sequence[Hashable]) -> Ints:
        """Return the number of each value."""
        return np.fromiter(map(self.__getitem__, values), np.int32, len(values))


@dataclass
class Tables:
    """The tables of the graph under construction."""

    names: Numbering = field(default_factory=Numbering)
    works: Numbering = field(default_factory=Numbering)
    streams: Numbering = field(default_factory=Numbering)
    categories: Numbering = field(default_factory=Numbering)


@dataclass(frozen=True, eq=False)
class Template:
    """Columns of a program's ops.

    A wait refers to a local row if it is ≥ 0; -1 - k is ``slots[k]``, which every stamp fills with
    an op of its own. A part is the k-th of the template's parts on an axis; a part on no axis is
    slot k, which every stamp fills with a part.
    """

    name: Ints
    work: Ints
    stream: Ints
    phase: NDArray[np.int8]
    layer: NDArray[np.int16]
    wait_count: Ints
    wait_ref: Longs
    slots: tuple[Slot, ...]  # slots that something in it waits for
    part_count: Ints
    part_axis: Ints  # row of axes, or -1
    part_ref: Longs
    axes: tuple[str, ...]
    part_works: tuple[Ints, ...]  # per axis: the work of each of the template's parts on it
    memory_count: Ints
    memory_category: NDArray[np.int8]
    memory_bytes: Floats
    memory_at_end: Bools
    lasts: tuple[int, ...]  # the last op of each stream that nothing in it waits for
    outputs: tuple[int, ...]  # those that another stage waits for: no reductions over replicas
    sent: int  # row of the last copy to the host, or -1

    def __len__(self) -> int:
        return len(self.work)

    def waits(self, base: Longs, ops: Mapping[Slot, Longs]) -> Longs:
        """Return the ops that the ops of every copy wait for, one row per copy.

        ``base`` has the first op of every copy, ``ops`` the op of every copy that stands in a slot.
        """
        out = base[:, None] + self.wait_ref
        for column in np.flatnonzero(self.wait_ref < 0):
            out[:, column] = ops[self.slots[-1 - self.wait_ref[column]]]
        return out


Ranks = Callable[[str], tuple[int, ...]]  # the group of an axis, as ranks of the job


class Parts(NamedTuple):
    """The parts of a template's ops, as :class:`Template` has them."""

    counts: Ints
    axis: Ints
    ref: Longs
    axes: tuple[str, ...]
    works: tuple[Ints, ...]


class Asked(NamedTuple):
    """A collective, but for the ranks among which it runs."""

    axis: str
    collective: str
    bytes: float
    algorithm: str

    def among(self, ranks: tuple[int, ...]) -> Communication:
        """Return the collective among these ranks."""
        whose = OF_NORM.get(self.axis, self.axis)
        return Communication(self.collective, self.bytes, ranks, whose, self.algorithm)


@dataclass(frozen=True, eq=False)
class Placed:
    """A program lowered for one rank, from which it is lowered for others that run the same."""

    template: Template
    asked: tuple[Asked, ...]  # its distinct collectives, in the order in which they come
    which: Ints  # of each collective of the program: a row of asked

    def on(self, ranks: Ranks, tables: Tables) -> Template:
        """Return the template of another rank, whose collectives are among ``ranks(axis)``."""
        groups = {axis: ranks(axis) for axis in self.template.axes}
        of_each = tables.works.of([one.among(groups[one.axis]) for one in self.asked])[self.which]
        work, axis = self.template.work.copy(), self.template.part_axis
        work[self.template.part_count > 0] = of_each
        parts = tuple(of_each[axis == k] for k in range(len(self.template.axes)))
        return replace(self.template, work=work, part_works=parts)


def place(program: Program, ranks: Ranks, tables: Tables, beside: bool = False) -> Placed:
    """Lower ``program`` for one rank: its collectives are communication among ``ranks(axis)``.

    A program that runs ``beside`` another has its own streams: a second one for kernels and for
    each axis of the model.
    """
    second = BESIDE if beside else ""
    there = np.array([isinstance(item, Collective) for item in program], np.bool_)
    collectives = [item for item in program if isinstance(item, Collective)]
    asked, axes = Numbering(), Numbering()
    which = asked.of([(c.axis, c.collective, c.bytes, c.algorithm) for c in collectives])
    made = tuple(Asked(*one) for one in asked)  # type: ignore[misc]
    numbers = tables.works.of([one.among(ranks(one.axis)) for one in made])[which]
    axis = axes.of([c.axis for c in collectives])
    works = tuple(numbers[axis == k] for k in range(len(axes)))
    ref = np.empty(len(axis), np.int64)
    for k, of_axis in enumerate(works):
        ref[axis == k] = np.arange(len(of_axis))
    work = np.empty(len(program), np.int32)
    work[there] = numbers
    work[~there] = tables.works.of([i.work for i in program if not isinstance(i, Collective)])
    parts = Parts(there.astype(np.int32), axis, ref, tuple(axes), works)  # type: ignore[arg-type]
    streams = [_stream(item, second) for item in program]
    return Placed(_columns(program, work, streams, parts, tables), made, which)


def _stream(item: Item, second: str) -> str:
    """Return the stream on which an item runs."""
    if not isinstance(item, Collective):
        return (item.stream or COMPUTE) + second
    reduces = item.phase == "O"  # over replicas, in the order in which gradients are made
    return item.stream or (item.axis if reduces else item.axis + second)


def exchange(
    name: str, stream: str, phase: str, work: Communication, waits: int, parts: int, tables: Tables
) -> Template:
    """Return one p2p op that waits for ``waits`` inputs and takes part in ``parts`` messages."""
    item = Collective(name, "pp", "p2p", work.bytes, phase, needs=inputs(waits))
    on_no_axis = Parts(
        np.array([parts], np.int32), np.full(parts, -1, np.int32), np.arange(parts), (), ()
    )
    return _columns([item], tables.works.of([work]), [stream], on_no_axis, tables)


def _columns(
    program: Program, work: Ints, streams: Sequence[str], parts: Parts, tables: Tables
) -> Template:
    needs, changes = [item.needs for item in program], [item.memory for item in program]
    waits, slots = _numbered([*chain(*needs)])
    lasts, memory = _lasts(streams, set(waits)), [*chain(*changes)]
    return Template(
        name=tables.names.of([item.name for item in program]),
        work=work,
        stream=tables.streams.of(streams),
        phase=np.array([PHASE[item.phase] for item in program], np.int8),
        layer=np.array([item.layer for item in program], np.int16),
        wait_count=np.array([*map(len, needs)], np.int32),
        wait_ref=np.array(waits, np.int64),
        slots=slots,
        part_count=parts.counts,
        part_axis=parts.axis,
        part_ref=parts.ref,
        axes=parts.axes,
        part_works=parts.works,
        memory_count=np.array([*map(len, changes)], np.int32),
        memory_category=tables.categories.of([c.category for c in memory]).astype(np.int8),
        memory_bytes=np.array([c.bytes for c in memory], np.float64),
        memory_at_end=np.array([c.at == "end" for c in memory], np.bool_),
        lasts=lasts,
        outputs=_outputs(lasts, streams, program),
        sent=max((i for i, stream in enumerate(streams) if stream == TO_HOST), default=-1),
    )


def _numbered(needs: Sequence[Need]) -> tuple[list[int], tuple[Slot, ...]]:
    """Return needs as references of a template, and the slots among them."""
    slots: dict[Slot, int] = {}
    refs = [n if isinstance(n, int) else -1 - slots.setdefault(n, len(slots)) for n in needs]
    return refs, tuple(slots)


def _lasts(streams: Sequence[str], needed: set[int]) -> tuple[int, ...]:
    """Return the last op of each stream, unless something waits for it; on compute always."""
    last = {stream: i for i, stream in enumerate(streams)}
    return tuple(i for s, i in sorted(last.items()) if s.startswith(COMPUTE) or i not in needed)


def _outputs(lasts: tuple[int, ...], streams: Sequence[str], program: Program) -> tuple[int, ...]:
    kept = (i for i in lasts if streams[i].startswith(COMPUTE) or program[i].phase != "O")
    return tuple(i for i in kept if not isinstance(getattr(program[i], "work", None), Copy))
