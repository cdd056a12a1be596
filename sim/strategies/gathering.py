"""Sharded data parallelism in programs: parameters gathered for whom they are needed, gradients
reduced behind who makes them.

A program's first gathers start when the rank's kernel before it has ended, as nothing crosses from
one program into the next. The weight-gradient half of a backward (W) gathers nothing: it multiplies
activations and gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.graph import Compute
from sim.model import BYTES
from sim.program import Collective, Item, Kernel, Program
from sim.strategies.data import Bucket, DataParallel
from sim.strategies.draft import Draft, Key
from sim.strategies.sharded import Sharding, anchors, fetched
from sim.strategies.units import Unit, Visit, visits

GATHERED, GRADIENTS = "gathered_parameters", "gradient_buffers"


class Step(NamedTuple):
    """Which step of a stage a program is for."""

    kind: str  # F B I W
    place: str = ""  # "first" or "last" of its stage in the training step, or ""
    piped: bool = False  # with pipeline parallelism: what is kept stays for the whole step


class Part(NamedTuple):
    """Gradients that are reduced together."""

    parameters: int
    first: int  # position of the item that makes the first of them
    after: int  # of the one that makes the last
    buffered: bool = True  # made in one of the buffers that units use in turn


def shard(
    program: Program,
    step: Step,
    parts: Sequence[Unit],
    data: DataParallel,
    buckets: Sequence[Bucket] = (),
) -> Program:
    """A stage's program with its gathers and, if this step reduces, its reductions.

    ``buckets`` are the gradients of this kind of step where they are not reduced unit by unit.
    """
    s = data.sharding
    draft, used = Draft(program), visits(program, step.kind == "F", parts)
    if s and s.group > 1:
        _gather(draft, step, parts, used, data, s)
        for visit in used:
            _release(draft, visit, parts[visit.unit], step, data)
    if step.kind in "BW" and data.reduces(step.place):
        by_unit = s is not None and not s.bucketed
        _reduce(draft, _by_unit(program, parts, used) if by_unit else _by_bucket(buckets), data)
    return draft.finish()


def ahead_of_input(item: Item) -> bool:
    """Whether an item that leads a program needs nothing of what the stage is given."""
    return item.name in ("param_copy_in", "param_all_gather") and item.phase != "O"


# -- parameters -----------------------------------------------------------------------------------


def _gathers(unit: Unit, step: Step) -> bool:
    """Whether a step gathers a unit: of what is kept, the first forward does."""
    if unit.kept:
        return step.kind == "F" and (step.place == "first" or not step.piped)
    return step.kind != "W"


def _gather(
    draft: Draft,
    step: Step,
    parts: Sequence[Unit],
    used: Sequence[Visit],
    data: DataParallel,
    s: Sharding,
) -> None:
    """Put each unit's gather where its turn comes; its first kernel waits for it."""
    needed = [_gathers(parts[visit.unit], step) for visit in used]
    ahead = s.forward if step.kind == "F" else s.backward
    at = anchors(ahead, len(used))
    if s.fetch:
        live = [parts[v.unit].parameters * n for v, n in zip(used, needed, strict=True)]
        at = fetched(live, s.fetch)
    turns = [j for j in range(len(used)) if needed[j]]
    for n, j in enumerate(turns):
        behind = s.behind and step.kind != "F"
        before = _kernel_before(draft, used[j].first) if behind else None
        _put(draft, j, used, before, at[j], s, data, parts, step)
        if s.buffers and n >= s.buffers and not parts[used[j].unit].kept:
            user = used[turns[n - s.buffers]]  # of the buffer, before
            if not parts[user.unit].kept:
                draft.wait(("gather", j), user.last)


def _put(
    draft: Draft,
    j: int,
    used: Sequence[Visit],
    behind: int | None,
    at: int,
    s: Sharding,
    data: DataParallel,
    parts: Sequence[Unit],
    step: Step,
) -> None:
    """The gather of the j-th unit used, with what copies it in and out."""
    unit, first = parts[used[j].unit], used[j].first
    size = float(unit.parameters * BYTES[data.dtype])
    phase = "F" if step.kind == "F" else "I"
    before = used[at].first if at >= 0 and behind is None else None
    needs = _since(draft, used, at, j, s) if behind is None else (behind,)
    if before is not None and not needs:
        before = None  # nothing of this program comes earlier
    smaller = s.regroup and step.kind != "F" and not unit.kept
    axis, group = ("reshard", s.regroup) if smaller else (s.axis, s.group)
    layer = min((owner for owner in unit.owners if owner >= 0), default=-1)
    gather: tuple[str, int] = ("gather", j)
    if s.copies:
        own = Compute("elementwise", 0.0, 2 * size / group)
        copy = Kernel("param_copy_in", own, phase, layer, stream="fsdp copy_in")
        draft.put(("copy_in", j), copy, needs, before, behind)
        needs = (("copy_in", j),)
    item = Collective("param_all_gather", axis, "all_gather", size, phase, layer,
                      stream=s.gather_stream)  # fmt: skip
    draft.put(gather, item, needs, before, behind)
    if not s.buffers or unit.kept:
        draft.remember(gather, GATHERED, size, "start")
    if smaller:
        draft.remember(gather, GATHERED, -size / group, "end")
    if s.copies:
        whole = Compute("elementwise", 0.0, 2 * size)
        draft.put(("copy_out", j), Kernel("param_copy_out", whole, phase, layer), (gather,), first)
        draft.remember(("copy_out", j), GATHERED, size, "start")
        draft.remember(("copy_out", j), GATHERED, -size, "end")
    else:
        draft.wait(first, gather)


def _since(draft: Draft, used: Sequence[Visit], at: int, j: int, s: Sharding) -> tuple[Key, ...]:
    """What says that the unit has begun at which a gather is issued."""
    if at < 0:
        return ()
    if s.copies and at < j and draft.has(("copy_out", at)):
        return (("copy_out", at),)
    before = _kernel_before(draft, used[at].first)
    return () if before is None else (before,)


def _kernel_before(draft: Draft, at: int) -> int | None:
    return next((i for i in range(at - 1, -1, -1) if isinstance(draft.program[i], Kernel)), None)


def _release(draft: Draft, visit: Visit, unit: Unit, step: Step, data: DataParallel) -> None:
    """Free a unit's parameters behind its last kernel, if they are not needed again."""
    s = data.sharding
    assert s
    size = float(unit.parameters * BYTES[data.dtype])
    if unit.kept:
        ends = step.place == "last" and step.kind in "BW" if step.piped else step.kind in "BI"
    else:
        ends = step.kind != "W" and not s.buffers
    if ends:
        rest = s.regroup if step.kind == "F" and not unit.kept else 0
        draft.remember(visit.last, GATHERED, -size + (size / rest if rest else 0.0), "end")


# -- gradients ------------------------------------------------------------------------------------


def _by_unit(program: Program, parts: Sequence[Unit], used: Sequence[Visit]) -> list[Part]:
    """A unit's gradients, from its first weight gradient to its last kernel."""
    out = []
    for visit in sorted(used, key=lambda visit: visit.last):
        rows = range(visit.first, visit.last + 1)
        first = next((i for i in rows if program[i].phase == "W"), visit.first)
        unit = parts[visit.unit]
        out.append(Part(unit.parameters, first, visit.last, not unit.kept))
    return out


def _by_bucket(buckets: Sequence[Bucket]) -> list[Part]:
    """A bucket is there from when the one before it was full."""
    firsts = [0, *(bucket.after + 1 for bucket in buckets)]
    return [
        Part(bucket.parameters, min(first, bucket.after), bucket.after)
        for first, bucket in zip(firsts, buckets, strict=False)
    ]


def _reduce(draft: Draft, parts: Sequence[Part], data: DataParallel) -> None:
    """Put each part's reduction behind what makes its last gradient.

    FSDP2 copies a unit's gradients when those of the unit before are scattered; YaFSDP makes them
    in the buffer that the unit two before has left.
    """
    s = data.sharding or Sharding(data.degree, reduce_stream="dp")
    turns: list[int] = []  # parts in buffers
    for b, part in enumerate(parts):
        size = float(part.parameters * BYTES[data.grad_dtype])
        if not size:
            continue
        if s.copies or s.scale:
            name = "grad_copy_in" if s.copies else "grad_scale"
            moved = Compute("elementwise", 0.0, 2 * size)
            before = [("reduce", b - 1)] if s.copies and draft.has(("reduce", b - 1)) else []
            draft.put(("ready", b), Kernel(name, moved, "O"), before, after=part.after)
        last = _collectives(draft, b, part, size, s)
        if not (s.buffers and part.buffered):
            _hold(draft, b, part, size, data, s, last)
            continue
        if len(turns) >= s.buffers:
            draft.wait(part.first, ("reduce", turns[-s.buffers]))
        turns.append(b)


def _hold(
    draft: Draft, b: int, part: Part, size: float, data: DataParallel, s: Sharding, last: Key
) -> None:
    """Memory of whole gradients until they are scattered, and of the copy that is sent."""
    if data.gradient_split > 1:  # else they are there all the time
        end: Key = ("ready", b) if s.copies else last
        draft.remember(part.first, GRADIENTS, size, "start")
        draft.remember(end, GRADIENTS, -size, "end")
    if s.copies:
        draft.remember(("ready", b), GRADIENTS, size, "start")
        draft.remember(last, GRADIENTS, -size, "end")


def _collectives(draft: Draft, b: int, part: Part, size: float, s: Sharding) -> Key:
    """Scatter the sums inside a group, then sum the shards across the replicas.

    Returns the one behind which the whole gradients are needed no more.
    """
    ready: Key = ("ready", b) if s.copies or s.scale else part.after
    key: Key = ready
    if s.group > 1:
        item = Collective("grad_reduce_scatter", s.axis, "reduce_scatter", size, "O",
                          stream=s.reduce_stream)  # fmt: skip
        key = ("reduce", b)
        draft.put(key, item, (ready,), after=part.after)
    if s.replicas > 1:
        stream = "fsdp all_reduce" if s.group > 1 else s.reduce_stream
        shard = size / s.group
        sums = Collective("grad_all_reduce", s.across, "all_reduce", shard, "O", stream=stream)
        draft.put(("sum", b), sums, (key,), after=part.after)
        return key if s.group > 1 else ("sum", b)
    return key
