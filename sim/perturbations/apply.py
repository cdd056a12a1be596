"""Perturbations of ranks: slow GPUs, noise, uneven microbatches and pauses.

A slow kernel has a factor on its time, op by op; a pause is a lag before an op. Both are columns of
the finished graph and machine, so that a run without perturbations is the very same as before.
Each random number comes from a generator seeded by the recipe's seed, the table and the rank, and
so does not depend on which ranks are simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from schedules.input_error import InputError
from sim import units
from sim.builder.host import HOST
from sim.builder.job import Job
from sim.graph import Bools, Compute, Floats, Graph, Longs
from sim.machine.edits import Edit, applied
from sim.machine.hardware import Machine
from sim.perturbations.lengths import drawn, longer, of_tokens, skewness, slower
from sim.recipe.legality.perturbations import ranks
from sim.recipe.recipe import Recipe
from sim.recipe.sections import PerturbationSection
from sim.timeline import Timeline

Flags = Bools


@dataclass(frozen=True)
class Perturbed:
    """The perturbations of one run."""

    tables: Sequence[PerturbationSection]
    job: Job
    seed: int
    planned: int  # microbatches in the plan

    def __bool__(self) -> bool:
        return any(table.bandwidth is None for table in self.tables)

    def kinds(self) -> Longs | None:
        """Return a number for each rank of the job, the same for ranks that do the same.

        None means that all ranks do the same.
        """
        if not self:
            return None
        world = self.job.mesh.world
        columns = [np.zeros(world)]
        for _, table in self._of("compute", "noise", "gpu_spread", "stall"):
            mine = _mine(table, world) & (self.replica() < (table.replicas or world))
            each = table.noise is not None or table.gpu_spread is not None
            own = np.arange(1, world + 1) if each else 1
            columns.append(np.where(mine, own, 0.0))
        for k, table in self._of("lengths"):
            _, row = np.unique(self._lengths(k, table), axis=0, return_inverse=True)
            columns.append(row.ravel()[self.replica()].astype(np.float64))
        _, kind = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
        return np.asarray(kind.ravel(), np.int64)

    def machine(self, graph: Graph, machine: Machine) -> Machine:
        """Return the machine with the factors on kernels of slow ranks, lengths and noise."""
        compute = np.array([isinstance(work, Compute) for work in graph.works], bool)[graph.work]
        edits = []
        for k, table in self._of("compute", "noise", "lengths", "gpu_spread"):
            mine = compute & _mine(table, self.job.mesh.world)[graph.rank]
            edits.append(Edit("kernels", mine, self._factor(k, table, graph, machine, mine)))
        return applied(graph, replace(machine, factor=None), *edits)[1] if edits else machine

    def _factor(
        self, k: int, table: PerturbationSection, graph: Graph, machine: Machine, mine: Flags
    ) -> float | Floats:
        """Return by which factor a table lengthens kernels: one, or one per op of the graph."""
        if table.compute is not None:
            return table.compute
        if table.noise is not None:
            return self._noise(k, table, graph, mine)
        if table.gpu_spread is not None:
            return slower(graph, machine, mine, self._gpus(k, table)[graph.rank])
        return self._longer(k, table, graph, machine, mine)

    def paused(self, graph: Graph) -> Graph:
        """Return the graph with the pauses that a step has, each behind a stream's first op of it.

        Raises InputError for a stream that none of the ranks has.
        """
        lag = np.array(graph.lag)
        for k, table in self._of("stall"):
            if table.at is not None:
                continue
            at = graph.step >= (table.step or 0)
            for ops in self._stalled(k, table, graph):
                behind_first = ops[at[ops]][:2][-1:]
                lag[behind_first] += units.parse(table.stall or "", "s")
        return replace(graph, lag=lag) if lag.any() else graph

    @property
    def timed(self) -> bool:
        """Whether some pause is at a given time, so that a run without it is needed first."""
        return any(table.at is not None for table in self.tables)

    def paused_at(self, timeline: Timeline) -> Graph:
        """Return the graph with the pauses at given times of ``timeline``, which has none of them.

        The op that runs at that time ends first. Raises InputError for a time after the last op of
        a stream has begun, and for a stream that none of the ranks has.
        """
        graph = timeline.graph
        lag = np.array(graph.lag)
        for k, table in self._of("stall"):
            if table.at is None:
                continue
            time = units.parse(table.at, "s")
            for ops in self._stalled(k, table, graph):
                behind = max(1, int(np.searchsorted(timeline.start[ops], time)))
                if behind >= len(ops):
                    last = timeline.end[ops[-1]]
                    raise InputError(
                        f"perturbations[{k}].at = {table.at} is after the last op of rank "
                        f"{graph.rank[ops[0]]} on that stream has begun; a time before {last:.6g} "
                        "s would do"
                    )
                idle = time - timeline.end[ops[behind - 1]]
                lag[ops[behind]] += units.parse(table.stall or "", "s") + max(0.0, idle)
        return replace(graph, lag=lag)

    def _of(self, *effects: str) -> Iterator[tuple[int, PerturbationSection]]:
        for k, table in enumerate(self.tables):
            if any(getattr(table, effect) is not None for effect in effects):
                yield k, table

    def _noise(self, k: int, table: PerturbationSection, graph: Graph, mine: Flags) -> Floats:
        factor = np.ones(len(graph))
        rows = np.flatnonzero(mine)
        order = rows[np.argsort(graph.rank[rows], kind="stable")]
        begins = np.flatnonzero(np.diff(graph.rank[order], prepend=-1))
        for ops in np.split(order, begins[1:]):
            if len(ops):
                random = self._random(k, int(graph.rank[ops[0]]))
                factor[ops] = drawn(random, table.sigma, len(ops))
        return factor

    @property
    def sample(self) -> float | None:
        """The skewness of the noise on a kernel where only a sample of replicas has it."""
        return next((skewness(of.sigma) for of in self.tables if of.replicas), None)

    @property
    def fleet(self) -> bool:
        """Whether the speed of each GPU is drawn."""
        return any(table.gpu_spread is not None for table in self.tables)

    def _gpus(self, k: int, table: PerturbationSection) -> Floats:
        """Return the factor on the tensor work of each rank of the job."""
        seed = self.seed if table.seed is None else table.seed
        fleet = np.random.default_rng([seed, k])
        return drawn(fleet, table.gpu_spread, self.job.mesh.world)

    def _random(self, k: int, rank: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, k, rank])

    def replica(self) -> Longs:
        """Return the coordinate along dp of each rank of the job."""
        out = np.empty(self.job.mesh.world, np.int64)
        out[self.job.ranks] = np.arange(self.job.ranks.shape[2])[:, None]
        return out

    def _lengths(self, k: int, table: PerturbationSection) -> Floats:
        """Return the lengths of microbatches, as factors: (replicas, microbatches of all steps).

        A list of lengths is dealt out as a loader deals out samples: the first microbatch of each
        replica, then the second, and so on. It begins again when it is used up.
        """
        replicas, count = self.job.ranks.shape[2], self.planned * self.job.steps
        size = replicas * count
        if isinstance(table.lengths, tuple):
            each: Floats = np.resize(np.array(table.lengths), size)
        else:
            each = drawn(self._random(k, 0), table.lengths, size)
        return each.reshape(count, replicas).T

    def _longer(
        self, k: int, table: PerturbationSection, graph: Graph, machine: Machine, mine: Flags
    ) -> Floats:
        ops = np.flatnonzero(mine & of_tokens(graph))
        step = graph.step[ops] if self.job.batch is None else 0
        row = self.replica()[graph.rank[ops]], step * self.planned + graph.microbatch[ops]
        out = np.ones(len(graph))
        out[ops] = longer(graph, machine, ops, self._lengths(k, table)[row])
        return out

    def _stalled(self, k: int, table: PerturbationSection, graph: Graph) -> Iterator[Longs]:
        """Yield the ops of each stream that pauses; raise InputError where there is none."""
        mine = _mine(table, self.job.mesh.world)
        wanted = table.stream or (HOST if HOST in graph.streams else "compute")
        found = 0
        for rank, stream, ops in graph.by_stream():
            if stream == wanted and mine[rank]:
                found += 1
                yield ops
        if not found:
            raise InputError(
                f"perturbations[{k}].stream = {wanted!r} is not a stream of those ranks; there "
                f"are {', '.join(graph.streams)}"
            )


def perturbed(recipe: Recipe, job: Job) -> Perturbed:
    """Return the perturbations of a recipe."""
    return Perturbed(recipe.perturbations, job, recipe.simulation.seed, recipe.planned)


def _mine(table: PerturbationSection, world: int) -> Flags:
    """Return a flag for each rank of the job: the table is about it."""
    own = ranks(table)
    return np.isin(np.arange(world), own) if own else np.ones(world, np.bool_)
