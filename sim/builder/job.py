"""What is trained and how: everything that determines the graph of a step, without a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

import schedules
from schedules import Plan, flat
from sim import strategies
from sim.builder import derived
from sim.builder.mesh import ORDER, Mesh
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.exchange import Policy
from sim.model.sizes import BYTES, Model, Parameters, parameters
from sim.recipe.recipe import ParallelismSection, Recipe, ScheduleSection, TrainingSection


@dataclass(frozen=True)
class Job:
    """One training job: its model, the sections of its recipe, and the order of its pipeline.

    ``plan`` is the order of every pipeline rank, and its pairs run as ``schedule.pair`` says.
    Either the pipeline is flushed, and the weights updated, after each of ``steps`` runs of the
    plan; or it is never flushed, and each rank updates its weights after every ``batch``
    microbatches, which use the weights of ``stale`` updates before (one number per rank).
    """

    model: Model
    parallelism: ParallelismSection
    training: TrainingSection
    schedule: ScheduleSection
    plan: Plan
    steps: int = 1
    batch: int | None = None
    stale: Sequence[int] = ()

    @cached_property
    def mesh(self) -> Mesh:
        """The axes over the ranks."""
        return derived.mesh(self.parallelism)

    @cached_property
    def data(self) -> DataParallel:
        """How replicas agree."""
        experts = self.model.experts > 0
        return derived.data_parallel(self.parallelism, self.training, experts=experts)

    @cached_property
    def policy(self) -> Policy:
        """How ranks exchange messages."""
        return derived.policy(self.parallelism, self.schedule)

    @property
    def layers_per_stage(self) -> Sequence[int]:
        """Number of layers of each stage (model chunk), first to last."""
        return self.schedule.layers_per_stage or ()

    @property
    def stages(self) -> int:
        """Number of stages of the pipeline, on all its ranks together."""
        return len(self.layers_per_stage)

    def layers(self, stage: int) -> range:
        """Return the numbers of a stage's layers."""
        begin = sum(self.layers_per_stage[:stage])
        return range(begin, begin + self.layers_per_stage[stage])

    def held(self, stage: int) -> Parameters:
        """Return what each of its ranks holds of a stage.

        A rank with both ends holds a tied matrix once. Sharded units of two stages stay two.
        """
        first, last = stage == 0, stage == self.stages - 1
        p, layers = self.parallelism, self.layers(stage)
        held = parameters(self.model, p.tp, layers, first, last, p.ep, p.etp)
        if not self._one_rank_has_both_ends or self.data.sharding:
            return held
        if self.model.tied:
            return held._replace(head=0)
        return held if first else held._replace(embedding=0)

    @cached_property
    def _one_rank_has_both_ends(self) -> bool:
        ends = {0, self.stages - 1}
        on = [{step.stage for step in steps} & ends for steps in flat(self.plan)]
        return len(ends) > 1 and all(found in (ends, set()) for found in on)

    @cached_property
    def overlapping(self) -> bool:
        """Whether some forward runs between the forward of another microbatch and its backward."""
        starts = (pairwise(steps) for steps in flat(self.plan))
        return self.stages > 1 or any(a.kind == b.kind == "F" for of in starts for a, b in of)

    def of_stage(self) -> Job:
        """Return the job without what the programs of a stage do not depend on, for caches."""
        p = self.parallelism.model_copy(update={"pp": 1, "order": ORDER})
        training = self.training.model_copy(update={"global_batch": 1})
        return Job(self.model, p, training, ScheduleSection(), plan=())  # type: ignore[arg-type]

    @property
    def boundary_bytes(self) -> float:
        """Bytes that a rank sends to the next stage per microbatch: b s h in the job's dtype.

        Ranks that share a sequence each send their part.
        """
        p, training, model = self.parallelism, self.training, self.model
        tokens = training.micro_batch * model.sequence // p.cp
        size = float(tokens * model.hidden * BYTES[training.dtype])
        for change in strategies.hooks("boundary"):
            size = change(self, size)
        return size

    @cached_property
    def ranks(self) -> NDArray[np.int64]:
        """The job's ranks by coordinates, shape (tp, cp, dp, pp)."""
        sizes = {axis: self.mesh.degree(axis) for axis in ("tp", "cp", "dp", "pp")}
        inner_first = [axis for axis in self.mesh.order.split("-") if axis in sizes]
        shape = [sizes[axis] for axis in reversed(inner_first)]
        grid = np.arange(self.mesh.world).reshape(shape)
        return np.transpose(grid, [inner_first[::-1].index(axis) for axis in sizes])

    @cached_property
    def grid(self) -> NDArray[np.int64]:
        """The rank of each lane on each pipeline rank, shape (lanes, pp).

        Lanes count up along the innermost axis first.
        """
        dense = ("tp", "cp", "dp")
        inner_first = [axis for axis in self.mesh.order.split("-") if axis in dense]
        by_order = np.transpose(self.ranks, [*(dense.index(a) for a in inner_first[::-1]), 3])
        return by_order.reshape(-1, self.mesh.pp)

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lane of each rank, in the same numbering, and its pipeline rank, shapes (ranks,)."""
        lane, stage = np.empty(self.grid.size, np.int64), np.empty(self.grid.size, np.int64)
        lane[self.grid], stage[self.grid] = np.indices(self.grid.shape)
        return lane, stage


def without_plan(recipe: Recipe) -> Job:
    """Return the job of a recipe, without its plan."""
    p = recipe.parallelism
    job = Job(recipe.architecture, p, recipe.training, recipe.schedule, plan=[])
    if recipe.flushed:
        return replace(job, steps=recipe.simulation.steps or 1)
    stale = schedules.staleness(recipe.schedule.name, p.pp, recipe.options.get("batch"))
    return replace(job, batch=recipe.microbatches, stale=tuple(stale))
