"""Sharded data parallelism in programs: parameters gathered ahead of the kernels that use them.

A program's first gathers start when the rank's kernel before it has ended, because nothing else
connects one program with the next. The weight-gradient half of a backward (W) gathers nothing: it
multiplies activations and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.builder.program import (
    WEIGHT_GRADIENT,
    Collective,
    Kernel,
    Program,
    computes,
    without,
)
from sim.builder.strategies.data import Bucket, DataParallel, is_expert
from sim.builder.strategies.draft import Key, ProgramDraft
from sim.graph import Compute
from sim.strategies.sharded.flow import Flow, flow, keeps_behind_backward
from sim.strategies.sharded.kinds import anchors, fetched
from sim.strategies.sharded.scattering import of_buckets, of_units, reduce
from sim.strategies.sharded.units import Unit, Visit, visits

GATHERED = "gathered_parameters"


class StageStep(NamedTuple):
    """The step of a stage that a program is for."""

    kind: str  # F B I W
    place: str = ""  # "first" or "last" of its stage in the training step, or ""
    piped: bool = False  # microbatches overlap: what is kept stays for the whole step
    gathered: bool = False  # the stage's backward before it has left parameters gathered

    @property
    def phase(self) -> str:
        """The phase of its gathers."""
        return "F" if self.kind == "F" else "I"


class NewPlace(NamedTuple):
    """The place of a new item (see :meth:`sim.builder.strategies.draft.ProgramDraft.put`)."""

    needs: Sequence[Key] = ()
    before: int | None = None
    after: int | None = None


def shard(
    program: Program,
    step: StageStep,
    parts: Sequence[Unit],
    data: DataParallel,
    buckets: Sequence[Bucket] = (),
) -> Program:
    """Return a stage's program with its gathers and, if this step reduces, its reductions.

    ``buckets`` are the gradients of this kind of step where they are not reduced unit by unit.
    """
    s = flow(data)
    split = [(data.of_experts if is_expert(i) else data).gradient_split > 1 for i in program]
    program = [  # whole gradients are counted where they are reduced
        without(item, WEIGHT_GRADIENT) if shared else item
        for item, shared in zip(program, split, strict=True)
    ]
    draft, used = ProgramDraft(program), visits(program, step.kind == "F", parts)
    if s:
        shared = [v for v in used if _sharding(parts[v.unit], data, s).group > 1]
        Gathers(draft, step, parts, shared, data, s).all()
    if step.kind in "BW" and data.reduces(step.place):
        by_unit = s is not None and not s.bucketed
        made = of_units(program, parts, used) if by_unit else of_buckets(buckets)
        reduce(draft, made, data, last=step.place == "last")
    return draft.finish()


def _sharding(unit: Unit, data: DataParallel, dense: Flow) -> Flow:
    """Return how the ranks that hold a unit share it."""
    return flow(data.of_experts) or dense if unit.experts else dense


@dataclass(frozen=True)
class Gathers:
    """The gathers of one program under construction."""

    draft: ProgramDraft
    step: StageStep
    units: Sequence[Unit]
    used: Sequence[Visit]
    data: DataParallel
    sharding: Flow

    def all(self) -> None:
        """Put each unit's gather where its turn comes, and free what is not needed any more."""
        turns = [j for j, visit in enumerate(self.used) if self._needed(self.units[visit.unit])]
        issued = self._issued(turns)
        for n, j in enumerate(turns):
            self._put(j, self._place(j, issued[j]))
            if n and self._of(turns[n - 1]).experts != self._of(j).experts:  # another communicator
                self.draft.wait(("gather", j), ("gather", turns[n - 1]))
            if n >= self.sharding.buffers > 0:
                self._reuse(j, self.used[turns[n - self.sharding.buffers]])
        for visit in self.used:
            self._release(visit)

    def _of(self, j: int) -> Flow:
        """Return how the j-th unit used is shared."""
        return _sharding(self.units[self.used[j].unit], self.data, self.sharding)

    def _needed(self, unit: Unit) -> bool:
        """Return whether this program gathers a unit; the first forward gathers kept units."""
        step = self.step
        if unit.kept:
            return step.kind == "F" and (step.place == "first" or not step.piped)
        return step.kind != "W" and not step.gathered

    def _issued(self, turns: Sequence[int]) -> list[int]:
        """Return, for each unit used, the one at whose beginning it is gathered; -1: before all."""
        s = self.sharding
        if s.fetch:
            mine = [v.unit if j in turns else None for j, v in enumerate(self.used)]
            live = [0 if k is None else self.units[k].parameters for k in mine]
            return fetched(live, s.fetch)
        return anchors(s.forward if self.step.kind == "F" else s.backward, len(self.used))

    def _place(self, j: int, at: int) -> NewPlace:
        """Return where the j-th unit's gather is issued: at the beginning of unit ``at``."""
        if self.sharding.behind and self.step.kind != "F":
            last = self._kernel_before(self.used[j].first)
            return NewPlace() if last is None else NewPlace((last,), after=last)
        if at < 0:
            return NewPlace()
        first = self.used[at].first
        if self.sharding.buffers:  # only free buffers determine when
            return NewPlace(before=first)
        begun: Key | None = ("copy_out", at)
        if at == j or not self.draft.has(("copy_out", at)):
            begun = self._kernel_before(first)
        return NewPlace() if begun is None else NewPlace((begun,), before=first)

    def _kernel_before(self, at: int) -> int | None:
        rows = range(at - 1, -1, -1)
        return next((i for i in rows if computes(self.draft.program[i])), None)

    def _put(self, j: int, place: NewPlace) -> None:
        """Put the gather of the j-th unit used, for which its first kernel waits."""
        visit, s, draft = self.used[j], self._of(j), self.draft
        unit = self.units[visit.unit]
        size, kind = self._size(unit), "all_gather"
        again = s.regroup if self.step.kind != "F" and not unit.kept else 0
        axis, key = "reshard" if again else s.axis, ("gather", j)
        phase, layer = self.step.phase, unit.layer
        if s.copies:
            place = self._copies(j, place, size, again or s.group)
        else:
            draft.wait(visit.first, key)
        item = Collective(f"param_{kind}", axis, kind, size, phase, layer,
                          stream=s.gather_stream, algorithm=s.gather_by, ahead=True)  # fmt: skip
        draft.put(key, item, *place)
        if not s.buffers or unit.kept:
            draft.remember(key, GATHERED, size, "start")
        if again:  # the smaller group's share stays elsewhere
            draft.remember(key, GATHERED, -size / again, "end")

    def _copies(self, j: int, place: NewPlace, size: float, group: int) -> NewPlace:
        """Copy shards into the gather's buffer, and parameters out; return the gather's place."""
        draft, first, phase = self.draft, self.used[j].first, self.step.phase
        layer = self.units[self.used[j].unit].layer
        into, out = (Compute("elementwise", 0.0, 2 * moved) for moved in (size / group, size))
        copy = Kernel("param_copy_in", into, phase, layer, stream="fsdp copy_in", ahead=True)
        draft.put(("copy_in", j), copy, *place)
        back = Kernel("param_copy_out", out, phase, layer)
        draft.put(("copy_out", j), back, [("gather", j)], before=first)
        draft.remember(("copy_out", j), GATHERED, size, "start")
        draft.remember(("copy_out", j), GATHERED, -size, "end")
        return place._replace(needs=(("copy_in", j),))

    def _reuse(self, j: int, user: Visit) -> None:
        """Let a gather into a buffer wait until the unit that used it before is done with it."""
        if not self.units[user.unit].kept and not self.units[self.used[j].unit].kept:
            self.draft.wait(("gather", j), user.last)

    def _release(self, visit: Visit) -> None:
        """Free a unit's parameters after its last kernel, if they are not needed again."""
        unit, step, s = self.units[visit.unit], self.step, self.sharding
        over = step.place == "last" and step.kind in "BW"
        if unit.kept:
            ends = over if step.piped else step.kind in unit.ends
        elif step.piped and keeps_behind_backward(self.data):
            ends = over or step.kind == "F"
        else:
            ends = step.kind != "W" and not s.buffers
        if ends:
            size = self._size(unit)
            stays = size / s.regroup if s.regroup and step.kind == "F" and not unit.kept else 0.0
            self.draft.remember(visit.last, GATHERED, stays - size, "end")

    def _size(self, unit: Unit) -> float:
        return self.data.gathered(unit.parameters, unit.linear)
