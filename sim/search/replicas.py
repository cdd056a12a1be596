"""What replicas exchange in a step and what an update takes, at least: part of a lower bound.

Reductions are taken as one collective for a whole stage, which is never slower than one for each of
its buckets, and only of layers where parameters come and go unit by unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum

from sim import strategies
from sim.builder.groups import Lane, group
from sim.builder.job import Job
from sim.builder.program import Kernel
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.optimizer import Tail, tail, zero_gradients
from sim.model.sizes import BYTES, Parameters
from sim.search.plans import KINDS, Lines
from sim.search.prices import Prices
from sim.search.stages import Look


class Replicas:
    """The ends of a step on each rank of a pipeline, whose stages are ``on``."""

    def __init__(
        self,
        job: Job,
        of: Prices,
        on: Sequence[Sequence[int]],
        held: Sequence[Parameters],
        looks: Sequence[Look],
    ) -> None:
        self._job, self._of, self._on, self._held = job, of, on, held
        self._looks = [tuple(looks[stage] for stage in mine) for mine in on]
        self._tails: dict[tuple[Look, ...], float] = {}

    @property
    def beside(self) -> bool:
        """Whether gradients are reduced once, beside the backward that makes the last of them."""
        data = self._job.data
        return self._job.parallelism.overlap_grad_reduce and not data.split

    def begin(self, q: int) -> float:
        """Return the seconds in which a rank sets its gradients to zero."""
        total, experts = self._parameters(self._on[q])
        return self._of.kernel(zero_gradients(total, self._job.data, experts).work)[0]

    def _parameters(self, stages: Sequence[int]) -> tuple[int, int]:
        held = [self._held[stage] for stage in stages]
        return sum(of.total for of in held), sum(of.expert for of in held)

    def tail(self, q: int) -> float:
        """Return the seconds on a rank after its last backward: reductions, update, gathers."""
        job, data, mine = self._job, self._job.data, self._on[q]
        if (known := self._tails.get(self._looks[q])) is not None:
            return known
        total, experts = self._parameters(mine)
        narrow = sum(of(job, mine) for of in strategies.hooks("narrow"))
        what = Tail(total, experts, narrow, norm_ranks=2 * bool(job.training.clip))
        items = tail(what, [], data, 0)
        kernels = [one for one in items if isinstance(one, Kernel) and not one.stream]
        out = fsum(self._of.kernel(one.work)[0] for one in kernels)
        if not job.parallelism.overlap_grad_reduce:
            out += fsum(self.reduction(q, stage) for stage in mine)
        if data.gathers_updated and not job.parallelism.overlap_param_gather:
            out += self._gather(q, mine)
        self._tails[self._looks[q]] = out
        return out

    def reduction(self, q: int, stage: int) -> float:
        """Return the seconds of one reduction of the gradients of a stage."""
        held, data = self._held[stage], self._job.data
        kind = "reduce_scatter" if data.parallelism.zero or data.sharding else "all_reduce"
        size = BYTES[data.training.grad_dtype]
        return self._both(kind, q, held.total, held.expert, size)

    def _gather(self, q: int, stages: Sequence[int]) -> float:
        data = self._job.data
        total, experts = self._parameters(stages)
        return self._both(
            "all_gather", q, total, experts, BYTES[data.training.dtype] - data.gathered_less
        )

    def _both(self, kind: str, q: int, total: int, experts: int, size: int) -> float:
        """Return the longer of what dense parameters and experts take, on their own streams."""
        data = self._job.data
        if data.experts is None:
            return self._one(kind, q, "dp", data, float(total * size))
        dense = self._one(kind, q, "dp", data, float((total - experts) * size))
        return max(dense, self._one(kind, q, "edp", data.of_experts, float(experts * size)))

    def _one(self, kind: str, q: int, axis: str, data: DataParallel, size: float) -> float:
        if data.degree == 1 or not size:
            return 0.0
        whole = data.sharding is None or data.sharding.replicas == 1
        where = data.inside(axis) if whole else {"dp": "shard", "edp": "edp_shard"}[axis]
        ranks = group(self._job, where, Lane(0, 0, 0), q)
        return self._of.collective(kind, size, ranks, "auto") if len(ranks) > 1 else 0.0

    def exchanged(self, q: int, order: Lines) -> float:
        """Return the seconds of a communicator that runs beside kernels in all microbatches."""
        data = self._job.data
        if not data.split:
            return 0.0
        reduced = fsum(
            (1 if data.accumulates else order.count(q, stage, "BW")) * self.reduction(q, stage)
            for stage in self._on[q]
        )
        if data.sharding is None:
            return reduced
        gathered = fsum(self._gathered(q, stage, order) for stage in self._on[q])
        return reduced + gathered if data.sharding.one_by_one else max(reduced, gathered)

    def _gathered(self, q: int, stage: int, order: Lines) -> float:
        """Return the seconds of the gathers of a stage's layers, but for those left from before."""
        held, data = self._held[stage], self._job.data
        assert data.sharding is not None
        times = [
            each * order.count(q, stage, kinds, behind="F" if data.accumulates else KINDS)
            for each, kinds in zip(data.sharding.gathers, ("F", "BI"), strict=True)
        ]
        inner = held.total - held.embedding - held.head
        size = BYTES[data.training.dtype] - data.gathered_less
        return sum(times) * self._both("all_gather", q, inner, held.expert, size)
