"""Templates: one program lowered to columns once; :mod:`sim.builder.stamp` copies them.

No function here loops over the ops of a graph: only over the items of a program.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.builder.program import Collective, Program
from sim.builder.slots import Need, Slot, inputs
from sim.graph import PHASES, Communication, Copy, Ints, Work

Longs = NDArray[np.int64]

COMPUTE = "compute"
TO_HOST, FROM_HOST = "d2h", "h2d"  # the streams of the copy engines
OF_NORM = {"stage_norm": "model", "norm_in": "model", "norm_out": "model"}
"""The dimension of axes over which the norm of the gradients is summed stage by stage."""
BESIDE = " 2"
"""What ends the names of streams of programs that run beside another on their rank."""


class Numbering:
    """Distinct values, numbered in the order in which they come."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, int] = {}

    def __call__(self, value: Hashable) -> int:
        """Return the number of ``value``, which is added if it is new."""
        return self.rows.setdefault(value, len(self.rows))

    def values(self) -> tuple[Hashable, ...]:
        """Return the values in the order of their numbers."""
        return tuple(self.rows)


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
    memory_bytes: NDArray[np.float64]
    memory_at_end: NDArray[np.bool_]
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
Ref = tuple[int, int]  # a part: (row of its axis, which part of it) or (-1, which slot)


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
    which: Longs  # of each collective of the program: a row of asked

    def on(self, ranks: Ranks, tables: Tables) -> Template:
        """Return the template of another rank, whose collectives are among ``ranks(axis)``."""
        groups = {axis: ranks(axis) for axis in self.template.axes}
        works = [tables.works(one.among(groups[one.axis])) for one in self.asked]
        of_each = np.array(works, np.int32)[self.which]
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
    works: list[Work] = []
    streams: list[str] = []
    refs: list[tuple[Ref, ...]] = []
    parts: dict[str, list[int]] = {}
    made: dict[Asked, Communication] = {}
    asked: list[Asked] = []
    for item in program:
        if not isinstance(item, Collective):
            works.append(item.work)
            streams.append((item.stream or COMPUTE) + second)
            refs.append(())
            continue
        asked.append(Asked(item.axis, item.collective, item.bytes, item.algorithm))
        if asked[-1] not in made:
            made[asked[-1]] = asked[-1].among(ranks(item.axis))
        works.append(made[asked[-1]])
        reduces = item.phase == "O"  # over replicas, in the order in which gradients are made
        streams.append(item.stream or item.axis + second * (not reduces))
        mine = parts.setdefault(item.axis, [])
        refs.append(((list(parts).index(item.axis), len(mine)),))
        mine.append(tables.works(works[-1]))
    row = {one: k for k, one in enumerate(made)}
    which = np.array([row[one] for one in asked], np.int64)
    return Placed(_columns(program, works, streams, refs, parts, tables), tuple(made), which)


def exchange(
    name: str, stream: str, phase: str, work: Communication, waits: int, parts: int, tables: Tables
) -> Template:
    """Return one p2p op that waits for ``waits`` inputs and takes part in ``parts`` messages."""
    item = Collective(name, "pp", "p2p", work.bytes, phase, needs=inputs(waits))
    refs = [tuple((-1, k) for k in range(parts))]
    return _columns([item], [work], [stream], refs, {}, tables)


def _columns(
    program: Program,
    works: Sequence[Work],
    streams: Sequence[str],
    refs: Sequence[tuple[Ref, ...]],
    parts: Mapping[str, Sequence[int]],
    tables: Tables,
) -> Template:
    memory = [change for item in program for change in item.memory]
    waits, slots = _numbered([need for item in program for need in item.needs])
    lasts = _lasts(streams, set(waits))
    flat = [ref for row in refs for ref in row]
    return Template(
        name=np.array([tables.names(item.name) for item in program], np.int32),
        work=np.array([tables.works(work) for work in works], np.int32),
        stream=np.array([tables.streams(stream) for stream in streams], np.int32),
        phase=np.array([PHASES.index(item.phase) for item in program], np.int8),
        layer=np.array([item.layer for item in program], np.int16),
        wait_count=np.array([len(item.needs) for item in program], np.int32),
        wait_ref=np.array(waits, np.int64),
        slots=slots,
        part_count=np.array([len(row) for row in refs], np.int32),
        part_axis=np.array([axis for axis, _ in flat], np.int32),
        part_ref=np.array([k for _, k in flat], np.int64),
        axes=tuple(parts),
        part_works=tuple(np.array(of, np.int32) for of in parts.values()),
        memory_count=np.array([len(item.memory) for item in program], np.int32),
        memory_category=np.array([tables.categories(c.category) for c in memory], np.int8),
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
