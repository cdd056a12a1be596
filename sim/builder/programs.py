"""The programs that the rank of a lane runs: its steps, and a training step's head and tail.

A stage's programs (layers, tensor, context and expert parallelism, recomputation) get what the
data-parallel dimension adds to them, and the slots of the ops that they are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim import strategies
from sim.builder import groups, slots
from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.builder.program import Collective, Item, Program
from sim.builder.slots import Slot
from sim.builder.stage import stage_programs
from sim.builder.strategies import data as data_parallel
from sim.builder.strategies.data import Bucket
from sim.builder.strategies.messages import Steps
from sim.builder.strategies.optimizer import Tail, tail, zero_gradients
from sim.builder.strategies.variants import Variant
from sim.graph import Copy
from sim.model.sizes import BYTES, Parameters

_stage_programs = lru_cache(maxsize=64)(stage_programs)


class StepPlace(NamedTuple):
    """Which step of a stage a program is for, for the hook ``step`` of features."""

    stage: int
    kind: str  # F B I W
    place: str  # "first" of its stage on its rank, "last" of it for an update, or ""
    gathered: bool  # the stage's sharded parameters are gathered already
    whole: Program  # the stage's program of this kind, without replicas
    held: Parameters
    buckets: Sequence[Bucket]  # gradients that are reduced together


@dataclass
class Programs:
    """The programs of one job, each made once."""

    job: Job
    steps: Steps
    sends: bool = True  # whether stages exchange messages

    def __post_init__(self) -> None:
        self._made: dict[tuple[int, tuple[int, int]], Mapping[str, Program]] = {}
        self._cut: dict[tuple[int, str, int], list[Bucket]] = {}
        self._of_stage = self.job.of_stage()
        self._remote, self._leaves = cache(self._from_another), cache(self._to_another)

    def _programs(self, stage: int, lane: Lane) -> Mapping[str, Program]:
        """Return what the rank of a lane runs of a stage; several lanes run the same."""
        job, like = self.job, groups.twin(self.job, lane)
        if (stage, like) not in self._made:
            ends = {"first": stage == 0, "last": stage == job.stages - 1}
            cp, ep = like
            make = stage_programs if job.parallelism.strategy else _stage_programs  # a file changes
            made = make(self._of_stage, job.layers(stage), **ends, cp_rank=cp, ep_rank=ep)
            for change in strategies.hooks("on_rank"):
                made = change(job, made)
            self._made[stage, like] = made
        return self._made[stage, like]

    def _buckets(self, stage: int, q: int, lane: Lane, kind: str = "") -> list[Bucket]:
        """Return a stage's gradient buckets on a pipeline rank, as one kind of step makes them.

        By default that is the kind of step that makes the last gradients: B or W.
        """
        if kind not in ("B", "W"):
            mine = slice(int(self.steps.begins[q]), int(self.steps.begins[q + 1]))
            kinds = self.steps.kind[mine][self.steps.stage[mine] == stage]
            kind = str(kinds[np.isin(kinds, ["B", "W"])][-1])
        made = self._programs(stage, lane)[kind]
        key = (stage, kind, id(made))
        if key not in self._cut:
            self._cut[key] = data_parallel.buckets(made, self.job.held(stage), self.job.data)
        return self._cut[key]

    def step(self, variant: Variant, q: int, lane: Lane) -> Program:
        """Return one step of a stage on the rank of a lane and pipeline rank."""
        stage, kind, place = variant.stage, variant.kind, variant.place
        items = whole = self._programs(stage, lane)[kind]
        data, parts = self.job.data, self._buckets(stage, q, lane, kind)
        if place == "last" and self.job.parallelism.overlap_grad_reduce and not data.split:
            items = data_parallel.reduce_gradients(items, parts, data)
        held = self.job.held(stage)
        at = StepPlace(stage, kind, place, variant.gathered, whole, held, parts)
        for change in strategies.hooks("step"):
            items = change(self.job, items, at)
        if place == "first" and self._gathers_ahead:
            begin = self._head_row(stage, q, lane)
            items = data_parallel.wait_for_parameters(items, parts, begin)
        if variant.inputs and variant.kind != "W" and self._remote(variant.stage, variant.kind):
            for change in strategies.hooks("received"):
                items = change(self.job, items, variant.kind)
        if self.sends and variant.kind != "W" and self._leaves(variant.stage, variant.kind):
            for change in strategies.hooks("sent"):
                items = change(self.job, items, variant.kind)
        return _given(items, variant)

    def _from_another(self, stage: int, kind: str) -> bool:
        """Return whether the input of a stage's steps comes from another rank."""
        steps = self.steps
        first = np.argmax((steps.stage == stage) & (steps.kind == kind))
        source = steps.source[first]
        return bool(source >= 0 and steps.rank[source] != steps.rank[first])

    def _to_another(self, stage: int, kind: str) -> bool:
        """Return whether another rank takes the output of a stage's steps as its input."""
        steps = self.steps
        first = np.argmax((steps.stage == stage) & (steps.kind == kind))
        return bool((steps.rank[steps.source == first] != steps.rank[first]).any())

    @property
    def _gathers_ahead(self) -> bool:
        data = self.job.data
        return data.gathers_updated and self.job.parallelism.overlap_param_gather

    def on(self, q: int) -> list[int]:
        """Return the stages of a pipeline rank in ascending order."""
        return self._held[q]

    @cached_property
    def _held(self) -> list[list[int]]:
        spans = pairwise(self.steps.begins.tolist())
        return [sorted({*self.steps.stage[a:b].tolist()}) for a, b in spans]

    def head(self, q: int, lane: Lane, inputs: int) -> Program:
        """Return what a step begins with: gathers of parameters beside zeroed gradients."""
        items: list[Item] = []
        for s in self.on(q) if self._gathers_ahead else ():
            items += data_parallel.gathers(self._buckets(s, q, lane), self.job.data)
        held = [self.job.held(s) for s in self.on(q)]
        total, experts = sum(h.total for h in held), sum(h.expert for h in held)
        items.append(zero_gradients(total, self.job.data, experts))
        return [item._replace(needs=slots.inputs(inputs)) for item in items]

    def _head_row(self, stage: int, q: int, lane: Lane) -> int:
        """Return where the gathers of a stage begin in its rank's head."""
        return sum(len(self._buckets(s, q, lane)) for s in self.on(q) if s < stage)

    def tail(self, q: int, lane: Lane, inputs: int) -> Program:
        """Return what a step, or an update, ends with, once ``inputs`` ops have ended."""
        job, mine = self.job, self.on(q)
        held = [self.job.held(s) for s in mine]
        grad, tp = BYTES[job.training.grad_dtype], job.parallelism.tp
        last = job.stages - 1
        ends = {self.owner(0), self.owner(last)}
        shared = job.model.tied or job.held(last).embedding > 0
        tied = shared and len(ends) > 1 and q in ends
        embedding = max(h.embedding or h.head for h in held) * grad if tied else 0
        total, experts = sum(h.total for h in held), sum(h.expert for h in held)
        split = job.data.gradient_split
        found = [one for of in strategies.hooks("in_part") for one in of(job, mine)]
        flushed, post = job.batch is None, job.training.clip == "post"
        what = Tail(
            parameters=total,
            experts=experts,
            linear=sum(of(job, mine) for of in strategies.hooks("narrow")),
            in_part=[(name, axis, size / split) for name, axis, size in found],
            embedding=embedding / split,
            twin=job.data.share(total, experts) * grad if len(self.twins(q)) > 1 else 0,
            loss_scale=job.training.dtype == "fp16",
            norm_ranks=tp
            * (1 if post else job.mesh.pp)
            * max(job.mesh.ep, job.data.optimizer_split)
            * (flushed and bool(job.training.clip)),
            chain=self._chain(q) if post else None,
            stashed=bool(job.stale) and job.batch == 1 and job.stale[q] > 0,
        )
        items = tail(what, [self._buckets(k, q, lane) for k in mine], job.data, inputs)
        if flushed:
            return items
        zeroed = zero_gradients(total, job.data, experts)  # the next step has begun already
        return [*items, zeroed._replace(needs=(len(items) - 1,))]

    def _chain(self, q: int) -> tuple[str, ...]:
        """Return whether the norm comes from the pipeline rank before and goes to the next."""
        return ("norm_in",) * (q > 0) + ("norm_out",) * (q < self.job.mesh.pp - 1)

    def twins(self, q: int) -> list[int]:
        """Return the pipeline ranks with the same stages: one, or two if it runs both ways."""
        return [other for other in range(len(self.job.plan)) if self.on(other) == self.on(q)]

    def owner(self, stage: int) -> int:
        """Return the first pipeline rank that runs a stage."""
        return int(self.steps.rank[np.argmax(self.steps.stage == stage)])


def _given(items: Program, variant: Variant) -> Program:
    """Let what leads a step's program wait for the step's inputs and the kernels before it.

    The first kernel waits for the input, and so does a collective before it. Such a collective also
    waits for the kernel before it on its rank, after which it is issued; where kernels run on two
    streams, all leading items do. A copy before the first kernel waits as that kernel does.
    """
    out, given = list(items), slots.inputs(variant.inputs)
    previous = tuple(Slot.before(k) for k in range(variant.before))
    apart = variant.pair == "beside" or variant.before > 1
    for i, item in enumerate(items):
        leads = isinstance(item, Collective)
        missing = tuple(n for n in given if n not in item.needs)
        if item.ahead:
            leads, missing = True, ()
        if (leads and not item.needs) or not leads:
            before = previous if leads or apart else ()
            out[i] = item._replace(needs=(*item.needs, *missing, *before))
        if not leads and not isinstance(getattr(item, "work", None), Copy):
            break
    return out
