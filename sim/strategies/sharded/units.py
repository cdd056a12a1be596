"""Units of sharded data parallelism: parameters that are gathered and reduced together.

FSDP wraps a transformer so that each layer (or a number of them) is a unit, and what no layer holds
(the embedding, the final norm and the head) is the root unit, which stays gathered from the forward
to the backward. ZeRO-3 has no root: the embedding and the head come and go like layers; where they
are one matrix it stays from its first to its last use in a program. Experts that are on other ranks
than the rest of their layer are units of their own inside it, as torchtitan wraps them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import NamedTuple

from sim.builder.job import Job
from sim.builder.program import Program, computes
from sim.builder.strategies.data import HEAD, DataParallel, is_expert
from sim.model.sizes import Model, matrix_parameters, parameters
from sim.strategies.sharded.flow import flow
from sim.strategies.sharded.kinds import reused

EMBEDDING = -1
EXPERTS = -3


def experts_of(layer: int) -> int:
    """Return the owner of a layer's experts, where they are apart from the layer."""
    return EXPERTS - layer


class Unit(NamedTuple):
    """Parameters that come and go together."""

    owners: frozenset[int]  # layers, their experts, EMBEDDING, HEAD
    parameters: int
    kept: bool = False  # stays gathered from the forward to the backward
    linear: int = 0  # how many of the parameters are in matrices of the layers

    @property
    def layer(self) -> int:
        """Its first layer, or -1."""
        layers = (experts_of(o) if o <= EXPERTS else o for o in self.owners)
        return min((layer for layer in layers if layer >= 0), default=-1)

    @property
    def experts(self) -> bool:
        """Whether it is a unit of experts that are apart from their layer."""
        return max(self.owners) <= EXPERTS

    @property
    def ends(self) -> str:
        """The kinds of steps that use it last; an embedding has no input gradient."""
        return "BW" if self.owners == {EMBEDDING} else "BI"


class Visit(NamedTuple):
    """The place where a program uses a unit: from its first to its last kernel."""

    unit: int
    first: int
    last: int


def sizes(
    model: Model,
    tp: int,
    layers: Sequence[int],
    first: bool,
    last: bool,
    apart: tuple[int, int] | None = None,
) -> dict[int, int]:
    """Return the parameters of one rank of a stage by their owner, in the order of the forward.

    ``apart`` is (ep, etp) where experts are owners of their own.
    """
    split = apart or (1, 1)
    held = {EMBEDDING: parameters(model, tp, (), first, last=False).total}
    for i in layers:
        one = parameters(model, tp, (i,), False, False, *split)
        held[i] = one.total - (one.expert if apart else 0)
        if apart:
            held[experts_of(i)] = one.expert
    whole = parameters(model, tp, layers, first, last, *split).total
    held[HEAD] = whole - sum(held.values())
    return {
        owner: size
        for owner, size in held.items()
        if size or (owner == HEAD and last and model.vocab)
    }


def units(
    held: dict[int, int], wrap: str | int = "layer", root: bool = True, tied: bool = False
) -> list[Unit]:
    """Return the units of a stage; ``wrap`` is "layer", "model" or the number of layers in a unit.

    >>> [(sorted(u.owners), u.parameters, u.kept) for u in units({-1: 9, 0: 2, 1: 3, -2: 7})]
    [([-2, -1], 16, True), ([0], 2, False), ([1], 3, False)]
    """
    layers = [owner for owner in held if owner >= 0]
    ends = [owner for owner in held if EXPERTS < owner < 0]
    if wrap == "model":
        apart = [owner for owner in held if owner <= EXPERTS]
        rest = [owner for owner in held if owner > EXPERTS]
        return [_unit(some, held, kept=True) for some in (rest, apart) if some]
    each = wrap if isinstance(wrap, int) else 1
    groups = [layers[k : k + each] for k in range(0, len(layers), each)]
    inner = [[experts_of(i) for i in group if experts_of(i) in held] for group in groups]
    out = [_unit(some, held) for pair in zip(groups, inner, strict=True) for some in pair if some]
    if root or tied:
        return [_unit(ends, held, kept=root), *out] if ends else out
    return [*(_unit([end], held) for end in ends), *out]


def _unit(owners: Sequence[int], held: dict[int, int], kept: bool = False) -> Unit:
    return Unit(frozenset(owners), sum(held[owner] for owner in owners), kept)


def owners(program: Program, forward: bool, ends: Collection[int]) -> list[int]:
    """Return the owner of the parameters that each item is about.

    What belongs to no layer belongs to the end of the stage that it is at. ``ends`` are the ends
    that the stage has; in a stage without layers everything belongs to its end.
    """
    layers = [i for i, item in enumerate(program) if item.layer >= 0]
    if not layers and len(ends) == 1:
        return [*ends] * len(program)
    begin = layers[0] if layers else 0
    early, late = (EMBEDDING, HEAD) if forward else (HEAD, EMBEDDING)
    return [
        item.layer if item.layer >= 0 else early if i < begin else late
        for i, item in enumerate(program)
    ]


def visits(program: Program, forward: bool, parts: Sequence[Unit]) -> list[Visit]:
    """Return where a program uses each of these units, in the order of their first kernels."""
    of = {owner: k for k, unit in enumerate(parts) for owner in unit.owners}
    found: dict[int, list[int]] = {}
    for i, owner in enumerate(owners(program, forward, of.keys() & {EMBEDDING, HEAD})):
        inner = experts_of(owner)
        mine = inner if inner in of and is_expert(program[i]) else owner
        if computes(program[i]) and mine in of:
            found.setdefault(of[mine], []).append(i)
    return sorted((Visit(k, at[0], at[-1]) for k, at in found.items()), key=lambda v: v.first)


def of_stage(job: Job, stage: int) -> Sequence[Unit]:
    """Return the units of a stage, those that stay from the forward to the backward marked."""
    ends = (stage == 0, stage == job.stages - 1)
    return _of_stage(job.model, job.data, job.layers(stage), *ends)


@lru_cache(maxsize=64)
def _of_stage(
    model: Model, data: DataParallel, layers: range, first: bool, last: bool
) -> Sequence[Unit]:
    s, p = flow(data), data.parallelism
    if s is None:
        return ()
    apart = None if data.experts is None else (p.ep, p.etp)
    held = sizes(model, p.tp, layers, first, last, apart)
    found = units(held, s.wrap, s.root, model.tied and first and last)
    kept = [unit.kept or s.keep for unit in found]
    if s.fetch:
        place = {owner: k for k, owner in enumerate(held)}
        order = sorted(
            range(len(found)), key=lambda k: min(place[owner] for owner in found[k].owners)
        )
        soon = reused([found[k].parameters for k in order], s.fetch.stage3_max_reuse_distance)
        kept = [soon[order.index(k)] for k in range(len(found))]
    return tuple(
        unit._replace(kept=keep, linear=_linear(model, data, unit))
        for unit, keep in zip(found, kept, strict=True)
    )


def _linear(model: Model, data: DataParallel, unit: Unit) -> int:
    """Return how many of a unit's parameters multiply in fp8."""
    if not data.gathered_less:
        return 0
    if unit.experts:
        return unit.parameters
    layers, p = [owner for owner in sorted(unit.owners) if owner >= 0], data.parallelism
    if data.experts is None:
        return matrix_parameters(model, p.tp, layers)
    whole = matrix_parameters(model, p.tp, layers, False, p.ep, p.etp)
    return whole - parameters(model, p.tp, layers, False, False, p.ep, p.etp).expert
