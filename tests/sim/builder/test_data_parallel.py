"""Gradient buckets: which parameters, in what order, reduced when; parameters gathered for whom."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sim.builder.job import Job
from sim.builder.program import Kernel
from sim.builder.slots import SENT, Slot
from sim.builder.stage import stage_programs
from sim.builder.strategies.data import (
    HEAD,
    DataParallel,
    buckets,
    gathers,
    reduce_gradients,
    wait_for_parameters,
)
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.graph import Compute, Graph
from sim.machine import cluster as clusters
from sim.model.sizes import Parameters, parameters
from sim.runs.run import prepare
from sim.timeline import Timeline
from tests.small import replicas

Make = Callable[..., Job]


def gradient(name: str, layer: int, m: int, n: int) -> Kernel:
    return Kernel(name, Compute("gemm", 0.0, 8.0, (1, m, n, 7)), "W", layer)


BACKWARD = [  # two layers, later first: 60 + 40, then 60 + 40; 10 more come at the end
    Kernel("norm", Compute("norm", 0.0, 8.0), "I", 1),
    gradient("fc", 1, 6, 10),
    gradient("qkv", 1, 4, 10),
    Kernel("dgrad", Compute("gemm", 0.0, 8.0, (1, 9, 9, 9)), "I", 0),
    gradient("fc", 0, 6, 10),
    gradient("qkv", 0, 4, 10),
]
HELD = Parameters(linear=200, row_bias=4, norm=6, embedding=0, positions=0, head=0)


def data(bucket: float, **changes: object) -> DataParallel:
    return replicas(degree=4, bucket=bucket, **changes)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (1, [(60, 1), (40, 2), (60, 4), (50, 5)]),
        (60, [(60, 1), (100, 4), (50, 5)]),
        (100, [(100, 2), (110, 5)]),
        (101, [(160, 4), (50, 5)]),
        (10**6, [(210, 5)]),
    ],
)
def test_buckets_fill_in_backward_order(parameters: int, expected: list[tuple[int, int]]) -> None:
    """Closed by the gradient that fills them; what no matrix product makes is in the last."""
    got = buckets(BACKWARD, HELD, data(4.0 * parameters))
    assert [(bucket.parameters, bucket.after) for bucket in got] == expected
    assert sum(bucket.parameters for bucket in got) == HELD.total


def test_a_bucket_counts_bytes_of_the_gradients() -> None:
    """The same 240 bytes hold 60 fp32 gradients or 120 of 16 bits."""
    sizes = [
        [b.parameters for b in buckets(BACKWARD, HELD, data(240, grad_dtype=g))]
        for g in ("fp32", "bf16")
    ]
    assert sizes == [[60, 100, 50], [160, 50]]


@pytest.mark.parametrize("tied", [False, True])
def test_buckets_of_a_whole_model(small_job: Make, tied: bool) -> None:
    """One matrix per bucket: the head (if it is another one than the embedding), each layer's four
    in backward order, and last the embedding with all that no matrix product makes."""
    job = small_job(tied=tied)
    h, rows = 64, 512
    held = parameters(job.model, 1, job.layers(0), first=True, last=True)
    program = stage_programs(job, job.layers(0), first=True, last=True)["B"]
    got = buckets(program, held, data(1.0))
    layer = [4 * h * h, 4 * h * h, h * h, 3 * h * h]  # fc2, fc1, projection, QKV
    rest = rows * h + 32 * h + 2 * h + 8 * 13 * h  # embedding, positions, final norm, biases, norms
    assert [b.parameters for b in got] == [rows * h] * (not tied) + 8 * layer + [rest]
    owners = [{HEAD}] * (not tied) + [{n} for n in range(7, -1, -1) for _ in layer] + [{-1}]
    assert [set(b.layers) for b in got] == owners
    assert got[-1].after == len(program) - 1


def test_reductions_stand_behind_what_fills_their_bucket() -> None:
    """And shift what is needed: a need of old item 2 is one of the same item in its new place."""
    program = [*BACKWARD[:5], BACKWARD[5]._replace(needs=(2, SENT))]
    settings = data(240.0)
    parts = buckets(program, HELD, settings)
    out = reduce_gradients(program, parts, settings)
    assert [item.name for item in out] == [
        "norm", "fc", "grad_scale", "grad_all_reduce", "qkv", "dgrad", "fc", "grad_scale",
        "grad_all_reduce", "qkv", "grad_scale", "grad_all_reduce",
    ]  # fmt: skip
    assert [out[i].needs for i in (3, 8, 11)] == [(2,), (7,), (10,)]
    assert out[9].needs == (4, SENT)
    assert [out[i].bytes for i in (3, 8, 11)] == [4 * 60, 4 * 100, 4 * 50]
    assert [out[i].work.bytes for i in (2, 7, 10)] == [8 * 60, 8 * 100, 8 * 50]


def test_without_overlap_a_stage_is_one_bucket() -> None:
    """There is nothing to start early, so nothing is cut."""
    (whole,) = buckets(BACKWARD, HELD, data(1.0, overlap_grad_reduce=False))
    assert (whole.parameters, whole.after) == (HELD.total, 5)


def test_forward_waits_for_the_gather_of_its_own_parameters() -> None:
    """Gathers go in forward order, the last bucket first; layer 0 needs the first of them, which is
    behind the three of the rank's earlier stages."""
    settings = data(400.0, zero=1, dtype="bf16")
    parts = buckets(BACKWARD, HELD, settings)
    assert [b.layers for b in parts] == [{1}, {0}]
    assert [g.bytes for g in gathers(parts, settings)] == [2 * 110, 2 * 100]
    forward = [
        Kernel(name, Compute("norm", 0.0, 8.0), "F", layer) for layer in (0, 1) for name in "ab"
    ]
    got = [item.needs for item in wait_for_parameters(forward, parts, 3)]
    assert got == [(Slot.head(3),), (), (Slot.head(4),), ()]


def run(job: Job) -> Timeline:
    _, graph, machine = prepare(job, clusters.load("dgx_a100", 8))
    return simulate(graph, machine)


def named(graph: Graph, start: str) -> np.ndarray:
    rows = [k for k, name in enumerate(graph.names) if name.startswith(start)]
    return np.flatnonzero(np.isin(graph.name, rows))


@pytest.mark.parametrize("zero", [0, 1])
def test_overlap_hides_reductions_behind_backward(small_job: Make, zero: int) -> None:
    """With overlap the first reduction starts while backward runs, of the last microbatch only;
    without it all start after the last gradient, and the step is longer (but for its latencies)."""
    seconds = []
    for overlap in (True, False):
        sizes = {"sequence": 512, "micro_batch": 4, "bucket": 6e5}
        job = small_job(dp=8, zero=zero, overlap_grad_reduce=overlap, **sizes)
        done = run(job)
        graph = done.graph
        reductions = named(graph, "grad_reduce_scatter" if zero else "grad_all_reduce")
        last = np.flatnonzero((graph.microbatch == 3) & np.isin(graph.phase, [3, 4]))
        other = np.flatnonzero((graph.microbatch == 2) & np.isin(graph.phase, [3, 4]))
        assert done.start[reductions].min() > done.end[other].max()
        begins_early = done.start[reductions].min() < done.end[last].max()
        assert begins_early == overlap
        seconds.append(done.seconds)
    assert seconds[0] < seconds[1] * (1.02 if zero else 1.0)  # more, smaller gathers at the end


def test_each_reduction_starts_when_its_last_gradient_is_there(small_job: Make) -> None:
    """Bucket by bucket, at the end of the kernel before it or of the reduction before it."""
    done = run(small_job(dp=8, bucket=4e5))
    graph = done.graph
    reductions = named(graph, "grad_all_reduce")
    assert len(reductions) > 3
    free = 0.0
    for i in reductions.tolist():
        filled = done.end[graph.waits(i)].max()
        assert graph.waits(i).tolist() == [i - 1]
        assert done.start[i] == max(free, filled)
        free = done.end[i]


def test_gathers_lead_the_step_or_end_it(small_job: Make) -> None:
    """overlap_param_gather: gathers at the head beside the first forwards, each waited for by the
    first kernel of its layers; without it they follow Adam, and the step ends with them."""
    done = run(small_job(dp=8, zero=1, overlap_param_gather=True))
    graph, moved = done.graph, named(done.graph, "param_all_gather")
    forward = np.flatnonzero((graph.phase == 1) & (graph.microbatch == 0))
    assert done.start[moved].min() == 0.0
    assert done.start[forward].min() < done.end[moved].max()
    for i in forward.tolist():
        gathered = [k for k in graph.waits(i).tolist() if k in set(moved.tolist())]
        assert all(done.start[i] >= done.end[k] for k in gathered)
    waited = {int(k) for i in forward.tolist() for k in graph.waits(i) if k in set(moved.tolist())}
    assert waited == set(moved.tolist())
    late = run(small_job(dp=8, zero=1))
    last = named(late.graph, "param_all_gather")
    assert late.start[last].min() >= late.end[named(late.graph, "adam")].max()
    assert late.end.max() == late.end[last].max()


def test_each_stage_of_a_rank_waits_for_its_own_gathers(small_job: Make) -> None:
    """A rank with two stages gathers the first's buckets and then the second's, each waited for by
    the forward of its stage."""
    graph = training_step(small_job(pp=2, dp=2, chunks=2, zero=1, overlap_param_gather=True))
    gathers = named(graph, "param_all_gather")
    for rank in graph.ranks().tolist():
        mine = gathers[graph.rank[gathers] == rank].tolist()
        waits = [(k, i) for i in range(len(graph)) for k in graph.waits(i).tolist() if k in mine]
        stages = [int(graph.stage[i]) for _, i in sorted(waits)]
        assert [k for k, _ in sorted(waits)] == mine
        assert stages == sorted(stages)
        assert len(set(stages)) == 2


def test_one_replica_reduces_and_gathers_nothing(small_job: Make) -> None:
    names = training_step(small_job(dp=1, zero=1, overlap_param_gather=True)).names
    assert not [name for name in names if name.startswith(("grad_all", "grad_reduce", "param"))]
