"""Jobs some of whose ranks or links are slow: what differs unfolds, and nothing else does."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from sim.builder.job import Job
from sim.engine import simulate
from sim.graph import Compute, Graph
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.perturbations import slowed
from sim.recipe.sections import PerturbationSection
from sim.runs.fold import Lanes
from sim.runs.run import prepare
from sim.timeline import Timeline
from tests.sim.runs.test_loads import drawn

Times = NDArray[np.float64]


def on(machine: Machine, graph: Graph, times: Times) -> Machine:
    """Give each rank's kernels its factor on their time."""
    compute = np.array([isinstance(work, Compute) for work in graph.works])[graph.work]
    return replace(machine, factor=np.where(compute, times[graph.rank], 1.0))


def step(job: Job, cluster: Cluster, times: Times, fold: bool = True) -> tuple[Lanes, Timeline]:
    _, kinds = np.unique(times, return_inverse=True)
    given = kinds if kinds.any() else None
    lanes, graph, machine = prepare(job, cluster, fold, kinds=given)
    return lanes, simulate(graph, on(machine, graph, times))


def check(job: Job, cluster: Cluster, times: Times) -> Lanes:
    """Every op of every rank of the job is where it is when all ranks are simulated."""
    lanes, some = step(job, cluster, times)
    _, whole = step(job, cluster, times, fold=False)
    of = lanes.stand_ins(job)
    assert np.array_equal(times[of], times)
    for rank, stand_in in enumerate(of.tolist()):
        mine, theirs = some.graph.rank == stand_in, whole.graph.rank == rank
        for ours, all_ranks in ((some.start, whole.start), (some.end, whole.end)):
            assert np.abs(ours[mine] - all_ranks[theirs]).max() <= 1e-9 * whole.seconds
    ranks, count = np.unique(of, return_counts=True)
    weights = dict(zip(ranks.tolist(), count.tolist(), strict=True))
    assert {rank: some.graph.stands_for.get(rank, 1) for rank in weights} == weights
    return lanes


SEEDS = [pytest.param(k, marks=[] if k in (2, 22) else [pytest.mark.slow]) for k in range(40)]


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_jobs_with_slow_ranks_are_those_with_all_ranks(tmp_path: Path, seed: int) -> None:
    """One to three slow ranks, at one of two speeds; all on at most 32 GPUs."""
    cluster, job = drawn(seed, tmp_path)
    if job.mesh.world > 32:
        pytest.skip("too many ranks to simulate all of them")
    rng = random.Random(seed)
    times = np.ones(job.mesh.world)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        times[rng.randrange(job.mesh.world)] = rng.choice([1.1, 1.7])
    check(job, cluster, times)


def test_a_slow_rank_unfolds_its_replica_and_its_own_group(small_job) -> None:
    """Of tp 4 x dp 4: itself, its tp peers as one, its dp peers as one, and one for all others."""
    job, cluster = small_job(tp=4, dp=4, pp=1, layers=2), clusters.load("dgx_a100", 16)
    times = np.ones(16)
    times[6] = 1.5
    lanes = check(job, cluster, times)
    assert [(lane.tp, lane.dp) for lane in lanes.simulated] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    times[[4, 5, 6, 7]] = 1.5
    assert [(lane.tp, lane.dp) for lane in check(job, cluster, times).simulated] == [(0, 0), (0, 1)]


def test_replicas_that_meet_a_slow_one_in_smaller_groups_unfold(small_job) -> None:
    """Optimizer shards of 2 of 8 replicas: the slow one, its mate, and one for the other six.

    All meet once, in the sums of the gradients.
    """
    job = small_job(dp=8, layers=2, zero=1, optimizer_instances=4)
    times = np.ones(8)
    times[5] = 1.5
    assert len(check(job, clusters.load("dgx_a100", 8), times).simulated) >= 3


def test_a_slow_nic_unfolds_the_rail_that_it_slows(small_job) -> None:
    """Of 8 rails of 4 nodes one is slow: its node has a slow rank, and each other node a mate."""
    job = small_job(tp=8, dp=4, layers=2, sp=True)
    whole = clusters.load("dgx_h100", 32)
    table = PerturbationSection(link="pcie", rank=11, bandwidth=0.25)
    slow = slowed(whole, [table])
    lanes = check(job, slow, np.ones(32))
    assert lanes.alike is not None
    assert len(lanes.simulated) == 4
    assert step(job, slow, np.ones(32))[1].seconds > step(job, whole, np.ones(32))[1].seconds
