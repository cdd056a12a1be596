"""What is trained and how: everything that determines the graph of a step, without a machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from schedules import Plan, flat
from sim.builder.mesh import Mesh
from sim.builder.strategies import share
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.exchange import Policy
from sim.model.sizes import BYTES, Model, Parameters, Setting, parameters


@dataclass(frozen=True)
class Job:
    """One training job.

    ``layers_per_stage`` counts the layers of each stage (model chunk), first to last. ``plan`` is
    the order of every pipeline rank, and its pairs run as ``pair`` says: serial, fused or shared.
    Either the pipeline is flushed, and the weights updated, after each of ``steps`` runs of the
    plan; or it is never flushed, and each rank updates its weights after every ``batch``
    microbatches, which use the weights of ``stale`` updates before (one number per rank).
    """

    model: Model
    setting: Setting
    data: DataParallel
    mesh: Mesh
    plan: Plan
    policy: Policy
    layers_per_stage: Sequence[int]
    scatter_gather: bool = False
    pair: str = "serial"
    steps: int = 1
    batch: int | None = None
    stale: Sequence[int] = ()

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
        s, layers = self.setting, self.layers(stage)
        held = parameters(self.model, s.tp, layers, first, last, s.ep, s.etp)
        if not self._one_rank_has_both_ends or self.data.sharding:
            return held
        if self.model.tied:
            return held._replace(head=0)
        return held if first else held._replace(embedding=0)  # that of multi-token prediction

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

    @cached_property
    def experts_alike(self) -> bool:
        """Whether all ranks along ep have the same number of tokens to process."""
        if self.mesh.ep == 1 or not self.model.experts:
            return True
        ranks = range(self.mesh.ep)
        first, *others = (share(self.model, self.setting, ep_rank=r) for r in ranks)
        return all(other == first for other in others)

    @property
    def boundary_bytes(self) -> float:
        """Bytes that a rank sends to the next stage per microbatch: b s h in the job's dtype.

        Ranks that share a sequence each send their part. Under sequence parallelism, and with
        scatter-gather, each tensor-parallel rank sends only its share (Narayanan et al. 2021,
        section 4.1).
        """
        s = self.setting
        whole = float(s.micro_batch * s.sequence // s.cp * self.model.hidden * BYTES[s.dtype])
        return whole / s.tp if s.sp or self.scatter_gather else whole

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
