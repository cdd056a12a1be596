"""Gradients of sharded replicas: reduced as soon as they are made, then freed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.builder.program import Collective, Kernel, Program
from sim.builder.strategies.data import Bucket, DataParallel, is_expert
from sim.builder.strategies.draft import Key, ProgramDraft
from sim.graph import Compute
from sim.model.sizes import BYTES
from sim.strategies.sharded.flow import Flow, flow
from sim.strategies.sharded.units import Unit, Visit

GRADIENTS = "gradient_buffers"


class Reduction(NamedTuple):
    """Gradients that are reduced together."""

    parameters: int
    first: int  # position of the item that makes the first of them
    after: int  # position of the item that makes the last of them
    buffered: bool = True  # made in one of the buffers that units use in turn
    experts: bool = False  # gradients of experts that are on other ranks than the rest


def of_units(program: Program, parts: Sequence[Unit], used: Sequence[Visit]) -> list[Reduction]:
    """Return each unit's gradients, from its first weight gradient to its last kernel."""
    out, apart = [], any(unit.experts for unit in parts)
    for visit in sorted(used, key=lambda visit: visit.last):
        unit = parts[visit.unit]
        rows = [
            i
            for i in range(visit.first, visit.last + 1)
            if not apart or is_expert(program[i]) == unit.experts
        ]
        first = next((i for i in rows if program[i].phase == "W"), visit.first)
        out.append(Reduction(unit.parameters, first, visit.last, not unit.kept, unit.experts))
    return out


def of_buckets(buckets: Sequence[Bucket]) -> list[Reduction]:
    """Return each bucket's gradients; a bucket begins where the one before it was full."""
    begin, out = {False: 0, True: 0}, []
    for bucket in buckets:
        experts, after = bucket.axis == "edp", bucket.after
        first = min(begin[experts], after)
        out.append(Reduction(bucket.parameters, first, after, experts=experts))
        begin[experts] = after + 1
    return out


def reduce(draft: ProgramDraft, parts: Sequence[Reduction], data: DataParallel, last: bool) -> None:
    """Put each part's reduction after what makes its last gradient.

    ``last`` says that this program completes the sums over all microbatches, which replicas need.
    """
    dense = flow(data) or Flow(data.degree, reduce_stream="dp")
    experts = flow(data.of_experts)
    if experts is None:
        experts = Flow(data.of_experts.degree, reduce_stream="edp", experts=True)
    alone = experts.group * experts.replicas == 1
    parts = [part for part in parts if not (part.experts and alone)]
    turns: list[int] = []  # parts in buffers
    for b, part in enumerate(parts):
        s = experts if part.experts else dense
        size = float(part.parameters * BYTES[data.training.grad_dtype])
        if not size:
            continue
        if s.copies or s.scale:
            _ready(draft, b, part, size, s)
        end = _collectives(draft, b, part, size, s, across=last or not s.once)
        if flow(data) and b and parts[b - 1].experts != part.experts:
            before = ("reduce" if (dense if part.experts else experts).group > 1 else "sum", b - 1)
            draft.wait(end, *([before] if draft.has(before) else []))
        if s.buffers and part.buffered:
            if len(turns) >= s.buffers:  # it reuses the buffer of an earlier part
                draft.wait(part.first, ("reduce", turns[-s.buffers]))
            turns.append(b)
        else:
            of = data.of_experts if part.experts else data
            _hold(draft, b, part, size, of, s, end)


def _ready(draft: ProgramDraft, b: int, part: Reduction, size: float, s: Flow) -> None:
    """Put the kernel that divides gradients, or copies them (FSDP2: after the scatter before)."""
    name, before = ("grad_copy_in" if s.copies else "grad_scale"), ("reduce", b - 1)
    needs = [before] if s.copies and draft.has(before) else []
    kernel = Kernel(name, Compute("elementwise", 0.0, 2 * size), "O")
    draft.put(("ready", b), kernel, needs, after=part.after)


def _hold(
    draft: ProgramDraft,
    b: int,
    part: Reduction,
    size: float,
    data: DataParallel,
    s: Flow,
    last: Key,
) -> None:
    """Allocate whole gradients until they are scattered, and the copy that is sent."""
    if data.gradient_split > 1:  # otherwise they are there all the time
        end: Key = ("ready", b) if s.copies else last
        draft.remember(part.first, GRADIENTS, size, "start")
        draft.remember(end, GRADIENTS, -size, "end")
    if s.copies:
        draft.remember(("ready", b), GRADIENTS, size, "start")
        draft.remember(last, GRADIENTS, -size, "end")


def _collectives(
    draft: ProgramDraft, b: int, part: Reduction, size: float, s: Flow, across: bool
) -> Key:
    """Scatter the sums inside a group, then, if asked, sum the shards across the replicas.

    Returns the key of the op after which the whole gradients are not needed any more.
    """
    ready: Key = ("ready", b) if s.copies or s.scale else part.after
    key: Key = ready
    if s.group > 1:
        item = Collective("grad_reduce_scatter", s.axis, "reduce_scatter", size, "O",
                          stream=s.reduce_stream)  # fmt: skip
        key = ("reduce", b)
        draft.put(key, item, (ready,), after=part.after)
    if s.replicas > 1 and across:
        stream = s.sum_stream if s.group > 1 else s.reduce_stream
        shard = size / s.group
        sums = Collective("grad_all_reduce", s.across, "all_reduce", shard, "O", stream=stream)
        draft.put(("sum", b), sums, (key,), after=part.after)
        return key if s.group > 1 else ("sum", b)
    return key
