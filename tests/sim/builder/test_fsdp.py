"""When units are gathered, reduced and freed: cases worked by hand, then whole steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from sim.analysis import breakdown as breakdowns
from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.builder.program import Collective, Kernel, Program
from sim.builder.stage import stage_programs
from sim.builder.strategies.data import HEAD, buckets
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.graph import Builder, Communication, Fixed, Graph
from sim.machine import cluster as clusters
from sim.machine.hardware import ideal
from sim.model.sizes import parameters
from sim.runs.run import prepare
from sim.strategies.sharded import kinds
from sim.strategies.sharded.flow import Flow
from sim.strategies.sharded.gathering import StageStep, shard
from sim.strategies.sharded.tables import DeepSpeedTable
from sim.strategies.sharded.units import Unit, sizes, units
from sim.timeline import Timeline
from tests.small import replicas

pytestmark = pytest.mark.slow

Make = Callable[..., Job]
THREE = [Unit(frozenset([layer]), parameters) for layer, parameters in enumerate((4, 2, 9))]


def forward() -> Program:
    """Three layers of 5 s."""
    return [Kernel(f"F{k}", Fixed(5.0), "F", k) for k in range(3)]


def backward() -> Program:
    """Three layers of 5 s for the input's gradient, then 5 s for the weight's."""
    return [Kernel(f"{phase}{k}", Fixed(5.0), phase, k) for k in (2, 1, 0) for phase in ("I", "W")]


def timed(program: Program, kind: str, sharding: Flow, reduce: float = 3.0) -> Timeline:
    """A sharded program alone: gathers of 4, 2 and 9 s, reductions of 3 s, copies of 1 s."""
    data = replicas(degree=4, grad_dtype="bf16", sharding=sharding)
    builder = Builder()
    for item in shard(program, StageStep(kind), THREE, data):
        name = f"{item.name}{item.layer}" if item.name.startswith("param") else item.name
        if isinstance(item, Collective):
            seconds = item.bytes / 2 if item.collective == "all_gather" else reduce
            stream, work = item.stream, Fixed(seconds, "communication", "dp")
        else:
            stream = item.stream or "compute"
            work = item.work if isinstance(item.work, Fixed) else Fixed(1.0)
        builder.add(name, 0, stream, work, item.needs, phase=item.phase, memory=item.memory)
    graph = builder.graph()
    return simulate(graph, ideal(graph))


def spans(done: Timeline, start: str) -> list[tuple[float, float]]:
    """Start and end of all ops whose name begins so, in issue order."""
    return [
        (float(done.start[i]), float(done.end[i]))
        for i in range(len(done.graph))
        if done.graph.op(i).name.startswith(start)
    ]


BARE = replace(kinds.zero3(4), scale=False, bucketed=False)
"""Gathers and reductions on streams of their own, and nothing else."""


@pytest.mark.parametrize(
    ("depth", "gathers", "seconds"),
    [
        (0, [(0, 4), (9, 11), (16, 25)], 30),
        (1, [(0, 4), (4, 6), (9, 18)], 23),
        (2, [(0, 4), (4, 6), (6, 15)], 20),
        (math.inf, [(0, 4), (4, 6), (6, 15)], 20),
    ],
)
def test_forward_of_three_units(
    depth: float, gathers: list[tuple[float, float]], seconds: float
) -> None:
    """Depth 0: 4 + 5 + 2 + 5 + 9 + 5. Depth 1: the third is gathered from when the second begins,
    at 9. Depth 2: from when the first begins, behind the second's gather on its stream."""
    done = timed(forward(), "F", replace(BARE, forward=depth))
    assert spans(done, "param_all_gather") == gathers
    assert done.seconds == seconds


@pytest.mark.parametrize(
    ("sharding", "gathers", "reductions", "seconds"),
    [
        (replace(BARE, backward=0), [(0, 9), (19, 21), (31, 35)], [(19, 22), (31, 34), (45, 48)],
         48),
        (replace(BARE, backward=1), [(0, 9), (9, 11), (19, 23)], [(19, 22), (29, 32), (39, 42)],
         42),
        (replace(kinds.fsdp1(4, backward_prefetch="none"), scale=False),
         [(0, 9), (22, 24), (37, 41)], [(19, 22), (34, 37), (51, 54)], 54),
        (replace(kinds.fsdp1(4, backward_prefetch="BACKWARD_POST"), scale=False),
         [(0, 9), (19, 21), (31, 35)], [(21, 24), (35, 38), (45, 48)], 48),
        (replace(kinds.fsdp1(4), scale=False), [(0, 9), (9, 11), (22, 26)],
         [(19, 22), (29, 32), (39, 42)], 42),
    ],
)  # fmt: skip
def test_backward_of_three_units(
    sharding: Flow,
    gathers: list[tuple[float, float]],
    reductions: list[tuple[float, float]],
    seconds: float,
) -> None:
    """Gathers of 9, 2 and 4 s, 10 s of kernels, reductions of 3 s. FSDP1 has one NCCL stream:
    without prefetch a gather is behind the reduction of the unit before, with BACKWARD_POST before
    it but behind its kernels, with BACKWARD_PRE beside the kernels."""
    done = timed(backward(), "B", sharding)
    assert spans(done, "param_all_gather") == gathers
    assert spans(done, "grad_reduce_scatter") == reductions
    assert done.seconds == seconds


def test_fsdp2_copies_in_and_out() -> None:
    """Copies of 1 s. Forward: the third gather's copy-in waits for the first copy-out, at 6, and
    backward: each waits for the copy-out before, at 11 and 23, and the last gather for the first
    reduction, (22, 25), of the same communicator."""
    done = timed(forward(), "F", kinds.fsdp2(4))
    assert spans(done, "param_copy_in") == [(0, 1), (1, 2), (6, 7)]
    assert spans(done, "param_all_gather") == [(1, 5), (5, 7), (7, 16)]
    assert spans(done, "param_copy_out") == [(5, 6), (11, 12), (17, 18)]
    assert done.seconds == 23
    back = timed(backward(), "B", kinds.fsdp2(4))
    assert spans(back, "param_copy_in") == [(0, 1), (11, 12), (23, 24)]
    assert spans(back, "param_all_gather") == [(1, 10), (12, 14), (25, 29)]
    assert spans(back, "param_copy_out") == [(10, 11), (22, 23), (34, 35)]


def test_fsdp2_copies_gradients_when_the_ones_before_are_scattered() -> None:
    """Reductions of 30 s: one at a time holds a copy."""
    done = timed(backward(), "B", kinds.fsdp2(4), reduce=30.0)
    copies, scattered = spans(done, "grad_copy_in"), spans(done, "grad_reduce_scatter")
    assert [later[0] for later in copies[1:]] == [end for _, end in scattered[:-1]]


def test_yafsdp_reuses_two_buffers() -> None:
    """The third gather waits for the last kernel of the first unit, the third unit's first weight
    gradient for the reduction of the first unit's: with 30 s each, (19, 49) here. So does its
    gather, which shares the communicator with reductions, but not on a stream of its own."""
    done = timed(forward(), "F", kinds.yafsdp(4))
    assert spans(done, "param_all_gather") == [(0, 4), (4, 6), (9, 18)]
    assert spans(done, "param_all_gather")[2][0] == spans(done, "F0")[0][1]
    one = timed(backward(), "B", kinds.yafsdp(4), reduce=30.0)
    assert spans(one, "param_all_gather")[2] == (49, 53)
    assert spans(one, "I0") == [(53, 58)]
    apart = replace(kinds.yafsdp(4), gather_stream="gathers")
    back = timed(backward(), "B", apart, reduce=30.0)
    assert spans(back, "grad_reduce_scatter")[0] == (19, 49)
    assert spans(back, "I0") == [(29, 34)]
    assert spans(back, "W0") == [(49, 54)]
    graph = back.graph
    assert not any("gathered" in name for name in graph.categories)


def test_units_of_a_stage(small_job: Make) -> None:
    """Each layer, and one root of embedding, final norm and head; ZeRO-3 has no root."""
    job = small_job(tied=False)
    held = sizes(job.model, 1, job.layers(0), first=True, last=True)
    layer, word = 12 * 64 * 64 + 13 * 64, 512 * 64
    assert held == {-1: word + 32 * 64, **dict.fromkeys(range(8), layer), HEAD: word + 128}
    root, *layers = units(held)
    assert root == Unit(frozenset([-1, HEAD]), 2 * word + 34 * 64, kept=True)
    assert [unit.kept for unit in layers] == [False] * 8
    assert [len(unit.owners) for unit in units(held, wrap=3)] == [2, 3, 3, 2]
    assert [unit.kept for unit in units(held, wrap="model")] == [True]
    zero = units(held, root=False)
    assert [sorted(unit.owners) for unit in zero[:3]] == [[-1], [HEAD], [0]]
    assert not any(unit.kept for unit in zero)


def run(job: Job) -> Timeline:
    _, graph, machine = prepare(job, clusters.load("dgx_a100", 8))
    return simulate(graph, machine)


def job_of(small_job: Make, sharding: Flow | None, **changes: object) -> Job:
    """Compute long enough to hide something."""
    size = {"sequence": 512, "micro_batch": 4, "microbatches": 2} | changes
    return small_job(dp=8, sharding=sharding, **size)


def held(done: Timeline, category: str) -> tuple[np.ndarray, np.ndarray]:
    """Bytes of a category on the first rank over time, what is freed first."""
    graph = done.graph
    op = np.repeat(np.arange(len(graph)), np.diff(graph.memory_start))
    mine = graph.memory_category == graph.categories.index(category)
    mine &= graph.rank[op] == graph.rank[0]
    when = np.where(graph.memory_at_end, done.end[op], done.start[op])[mine]
    order = np.lexsort((graph.memory_bytes[mine] > 0, when))
    return when[order], np.cumsum(graph.memory_bytes[mine][order])


TIGHT = DeepSpeedTable(
    stage3_prefetch_bucket_size=2e5, stage3_max_live_parameters=3e5, stage3_max_reuse_distance=3e5
)
EVERY = [
    kinds.zero3(8),
    kinds.zero3(8, TIGHT),
    kinds.fsdp1(8),
    kinds.fsdp1(8, "SHARD_GRAD_OP", backward_prefetch="BACKWARD_POST"),
    kinds.fsdp1(8, limit_all_gathers=False, backward_prefetch="none"),
    kinds.fsdp1(8, "HYBRID_SHARD", shard=4),
    kinds.fsdp2(8),
    kinds.fsdp2(8, reshard_after_forward=2, wrap=3),
    kinds.fsdp2(8, reshard_after_forward=False),
    kinds.fsdp2(8, wrap="model"),
    kinds.yafsdp(8),
]


@pytest.mark.parametrize("sharding", EVERY)
@pytest.mark.parametrize("shape", [{}, {"recompute": "full", "accumulate": True}])
def test_every_unit_is_there_when_it_is_used(
    small_job: Make, sharding: Flow, shape: dict[str, object]
) -> None:
    """No kernel of a layer runs before the last gather of it has ended, and all memory that was
    taken is given back by the end of the step."""
    done = run(job_of(small_job, sharding, **shape))
    graph = done.graph
    first = graph.rank == graph.rank[0]
    gathers = first & (graph.name == graph.names.index("param_all_gather"))
    for i in np.flatnonzero(gathers & (graph.layer >= 0)):
        same = first & (graph.layer == graph.layer[i]) & (graph.microbatch == graph.microbatch[i])
        same &= np.isin(graph.phase, [1] if graph.phase[i] == 1 else [2, 3, 4])
        copies = np.array([graph.op(k).name.startswith("param") for k in range(len(graph))])
        assert done.start[same & ~copies].min() >= done.end[i]
    if "gathered_parameters" in graph.categories:
        _, size = held(done, "gathered_parameters")
        assert size.min() > -1e-3
        assert abs(size[-1]) < 1e-3
    if "gradient_buffers" in graph.categories:
        _, size = held(done, "gradient_buffers")
        assert size.min() > -1e-3
        assert abs(size[-1]) < 1e-3


@pytest.mark.parametrize(("limit", "early"), [(True, False), (True, True), (False, False)])
def test_the_rate_limiter_allows_two_units(small_job: Make, limit: bool, early: bool) -> None:
    """Beside the root at most two layers are gathered at a time in a forward, one more with
    forward prefetch; without the limiter all eight may be."""
    sharding = kinds.fsdp1(8, limit_all_gathers=limit, forward_prefetch=early)
    done = run(job_of(small_job, sharding, microbatches=1))
    graph = done.graph
    ends = done.end[(graph.phase == 1) & (graph.layer >= 0)].max()
    when, size = held(done, "gathered_parameters")
    layer, root = 2 * (12 * 64 * 64 + 13 * 64), 2 * (512 * 64 + 34 * 64)
    most = (size[when < ends].max() - root) / layer
    assert most == (2 + early if limit else 8)


@pytest.mark.parametrize("kind", ["fsdp2", "zero3"])
def test_prefetch_hides_gathers(small_job: Make, kind: str) -> None:
    """The exposed seconds of dp fall with one unit ahead, and so does the step."""
    exposed, seconds = [], []
    for depth in (0, 1):
        sharding = kinds.fsdp2(8) if kind == "fsdp2" else kinds.zero3(8)
        job = job_of(small_job, replace(sharding, forward=depth, backward=depth))
        done = run(job)
        seconds.append(done.seconds)
        exposed.append(float(breakdowns.breakdown(done).exposed["dp"].max()))
    assert exposed[1] < 0.8 * exposed[0]
    assert seconds[1] < seconds[0]


def test_copy_engines_gather_and_do_not_scatter(small_job: Make) -> None:
    found = {
        (work.collective, work.algorithm)
        for work in training_step(job_of(small_job, kinds.fsdp2(8, copy_engines=True))).works
        if isinstance(work, Communication) and len(work.ranks) == 8
    }
    assert {("all_gather", "copy"), ("reduce_scatter", "auto")} <= found
    assert ("all_gather", "auto") not in found


def test_step_time_against_unit_size_has_a_minimum_inside(small_job: Make) -> None:
    """On two nodes one layer a unit pays 16 latencies, the whole model at once overlaps nothing."""
    seconds, cluster = {}, clusters.load("dgx_a100", 16)
    for wrap in (1, 2, 4, 16):
        sharding = kinds.fsdp2(16, wrap=wrap)
        size = {"hidden": 512, "ffn": 2048, "head_dim": 64, "layers": 16, "micro_batch": 4}
        job = small_job(dp=16, sharding=sharding, sequence=512, microbatches=1, **size)
        _, graph, machine = prepare(job, cluster)
        seconds[wrap] = simulate(graph, machine).seconds
    assert seconds[2] < min(seconds[1], seconds[4]) < seconds[16]


def streams(graph: Graph, name: str) -> set[str]:
    rows = graph.name == graph.names.index(name)
    return {graph.streams[k] for k in np.unique(graph.stream[rows])}


def test_streams_of_fsdp(small_job: Make) -> None:
    """Gathers and reductions share a communicator, which runs one at a time, in every kind."""
    graph = training_step(job_of(small_job, kinds.fsdp2(8, shard=4)))
    assert streams(graph, "param_copy_in") == {"fsdp copy_in"}
    assert streams(graph, "param_copy_out") == streams(graph, "grad_copy_in") == {"compute"}
    assert streams(graph, "grad_all_reduce") == {"fsdp all_reduce"}
    for sharding in (kinds.fsdp1(8), kinds.fsdp2(8), kinds.yafsdp(8)):
        graph = training_step(job_of(small_job, sharding))
        assert streams(graph, "param_all_gather") == {"fsdp nccl"}
        assert streams(graph, "grad_reduce_scatter") == {"fsdp nccl"}


def test_fsdp2_counts_the_bytes_of_its_copies(small_job: Make) -> None:
    """Read and write: a shard in, a whole unit out, whole gradients in."""
    graph = training_step(job_of(small_job, kinds.fsdp2(8)))
    layer, root = 12 * 64 * 64 + 13 * 64, 512 * 64 + 34 * 64
    for name, size in (("param_copy_in", 4 / 8), ("param_copy_out", 4), ("grad_copy_in", 8)):
        rows = np.flatnonzero(graph.name == graph.names.index(name))
        moved = {graph.works[graph.work[i]].bytes for i in rows}  # type: ignore[union-attr]
        assert moved == {size * layer, size * root}


@pytest.mark.parametrize(
    "sharding",
    [kinds.fsdp2(8, shard=4), kinds.fsdp2(8, reshard_after_forward=4), kinds.zero3(8)],
)
def test_folding_changes_nothing(small_job: Make, sharding: Flow) -> None:
    """One replica stands for all of them, also where they form groups of four."""
    job = job_of(small_job, sharding, microbatches=1, layers=2)
    cluster, seconds = clusters.load("dgx_a100", 8), []
    for fold in (True, False):
        lanes, graph, machine = prepare(job, cluster, fold=fold)
        assert lanes.axes == (("dp",) if fold else ())
        seconds.append(simulate(graph, machine).seconds)
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1", "interleaved_1f1b", "dualpipe_v"])
def test_with_pipelines(small_job: Make, schedule: str) -> None:
    """It runs beside every kind of step; a backward in halves gathers for its first half only."""
    chunks = {"interleaved_1f1b": 2, "dualpipe_v": 2}.get(schedule, 1)
    for sharding in (kinds.fsdp2(4), kinds.yafsdp(4), kinds.zero3(4)):
        job = small_job(
            pp=2, dp=4, microbatches=4, chunks=chunks, schedule=schedule, sharding=sharding
        )
        done = run(job)
        graph = done.graph
        gathers = graph.name == graph.names.index("param_all_gather")
        assert set(graph.phase[gathers].tolist()) == {1, 3}
        assert np.isfinite(done.end).all()
        layers = graph.rank[0] == graph.rank
        layers &= graph.layer >= 0
        assert (gathers & layers).sum() == 2 * 4 * 4  # each way, of 4 microbatches, of 4 layers


def test_gathers_do_not_wait_for_the_stage_before(small_job: Make) -> None:
    """Only the first kernel of a stage waits for its input; the first gather for the head."""
    for sharding in (kinds.fsdp2(4), kinds.zero3(4)):
        graph = training_step(small_job(pp=2, dp=4, microbatches=2, sharding=sharding))
        late = graph.rank == 4
        arrivals = set(
            np.flatnonzero(late & (graph.name == graph.names.index("recv_activation"))).tolist()
        )
        waiting = [i for i in np.flatnonzero(late) if arrivals & set(graph.waits(i).tolist())]
        assert waiting
        names = {graph.op(i).name for i in waiting}
        assert not names & {"param_copy_in", "param_all_gather"}


def test_ddp_s_first_bucket(small_job: Make) -> None:
    """It is closed by the first matrix of 16,384 gradients, the others at 200 kB."""
    job = small_job(dp=8)
    program = stage_programs(job, job.layers(0), first=True, last=True)["B"]
    held = parameters(job.model, 1, job.layers(0), first=True, last=True)
    for first, count in ((1e4, 4 * 64 * 64), (None, 5e4)):
        data = small_job(dp=8, bucket=2e5, first_bucket_mb=first and first / 1e6).data
        got = [bucket.parameters for bucket in buckets(program, held, data)]
        assert got[0] == count if first else got[0] >= count
        assert min(got[1:-1]) >= 5e4
        assert sum(got) == held.total


@pytest.mark.parametrize("overlap", [True, False])
def test_ddp_without_bucket_views(small_job: Make, overlap: bool) -> None:
    """Sums are copied back out of buckets, which are as large as the gradients."""
    whole = 4 * (8 * (12 * 64 * 64 + 13 * 64) + 512 * 64 + 34 * 64)
    graph = training_step(
        small_job(dp=8, gradient_as_bucket_view=False, overlap_grad_reduce=overlap), [Lane(0, 0, 0)]
    )
    back = np.flatnonzero(graph.name == graph.names.index("grad_copy_back"))
    assert sum(graph.works[graph.work[i]].bytes for i in back) == 2 * whole  # type: ignore[union-attr]
    assert graph.persistent[0]["gradient_buffers"] == graph.persistent[0]["gradients"] == whole
    for i in back.tolist():
        assert [graph.op(k).name for k in graph.waits(i).tolist()] == ["grad_all_reduce"]
