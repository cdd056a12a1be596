"""Bytes that a rank sends and holds under ZeRO-2, ZeRO-3, FSDP, HSDP and YaFSDP.

Each row of the project's table of the data-parallel family, from the ops of built steps; the right
sides know only sizes of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from sim.analysis.traffic import bytes_sent
from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.builder.training_step import training_step
from sim.graph import Graph
from sim.strategies.sharded import kinds
from sim.strategies.sharded.flow import Flow
from sim.strategies.sharded.tables import DeepSpeedTable
from tests.small import with_data

pytestmark = pytest.mark.slow

H, L, V = 64, 8, 512
LAYER = 12 * H * H + 13 * H  # matrices, biases and two norms
ROOT = V * H + 32 * H + 2 * H  # tied embedding, positions, final norm
ALL = L * LAYER + ROOT
Make = Callable[..., Job]


def sent(graph: Graph, rank: int = 0) -> dict[str, float]:
    """Bytes by dimension that one rank sends for replicas."""
    return {name: rows[rank] for name, rows in bytes_sent(graph).items() if name != "model"}


def same(count: float) -> object:
    return pytest.approx(count, rel=1e-12)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(("grad", "size"), [("bf16", 2), ("fp32", 4)])
def test_zero_2_reduces_every_microbatch(
    small_job: Make, n: int, m: int, grad: str, size: int
) -> None:
    """(m + 1) (N - 1) G / N in one dtype; with accumulate as data parallel, 2 (N - 1) G / N."""
    each = (n - 1) / n * ALL
    for accumulate, reductions in ((False, m), (True, 1)):
        for bucket in (1e4, 1e9):
            changes = {"grad_dtype": grad, "accumulate": accumulate, "bucket": bucket}
            graph = training_step(small_job(dp=n, zero=2, microbatches=m, **changes))
            assert sent(graph, n - 1) == {"dp": same(each * (reductions * size + 2))}


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("tied", [True, False])
def test_zero_3_sends_half_as_much_again(small_job: Make, n: int, m: int, tied: bool) -> None:
    """3 m (N - 1) G / N: 2 m gathers and m reductions; of one microbatch 1.5 times DDP's."""
    job = {"dp": n, "microbatches": m, "grad_dtype": "bf16", "tied": tied}
    graph = training_step(small_job(zero=3, sharding=kinds.zero3(n), **job))
    whole = 2 * (ALL + (0 if tied else V * H))
    assert sent(graph, n - 1) == {"dp": same(3 * m * (n - 1) / n * whole)}
    plain = sent(training_step(small_job(**job)))["dp"]
    assert sent(graph)["dp"] == same(1.5 * m * plain)


@pytest.mark.parametrize(
    ("fetch", "gathers"),
    [((0, 0), 2), ((5e7, 0), 2), ((5e7, 1e9), 1)],
)
def test_deepspeed_keeps_what_is_used_again_soon(
    small_job: Make, fetch: tuple[float, float], gathers: int
) -> None:
    """A model smaller than stage3_max_reuse_distance / 2 is gathered once per microbatch."""
    ahead, again = fetch
    sizes = {"stage3_prefetch_bucket_size": ahead, "stage3_max_reuse_distance": again}
    zero = kinds.zero3(8, DeepSpeedTable(**sizes))
    graph = training_step(small_job(dp=8, zero=3, sharding=zero, grad_dtype="bf16"))
    assert sent(graph) == {"dp": same(4 * (gathers + 1) * 7 / 8 * 2 * ALL)}


FSDP = [
    (kinds.fsdp1(8), 2 * ALL - ROOT),
    (kinds.fsdp1(8, backward_prefetch="none"), 2 * ALL - ROOT),
    (kinds.fsdp1(8, "SHARD_GRAD_OP"), ALL),
    (kinds.fsdp2(8), 2 * ALL - ROOT),
    (kinds.fsdp2(8, wrap=3), 2 * ALL - ROOT),
    (kinds.fsdp2(8, wrap="model"), ALL),
    (kinds.fsdp2(8, reshard_after_forward=False), ALL),
    (kinds.yafsdp(8), 2 * ALL - ROOT),
]


@pytest.mark.parametrize(("sharding", "gathered"), FSDP)
@pytest.mark.parametrize("m", [1, 3])
def test_fsdp(small_job: Make, sharding: Flow, gathered: int, m: int) -> None:
    """As ZeRO-3, but that the root unit is not gathered again; nothing is where all is kept."""
    job = {"dp": 8, "microbatches": m, "sharding": sharding}
    for size, grad in ((2, "bf16"), (4, "fp32")):
        graph = training_step(small_job(**job, grad_dtype=grad))
        assert sent(graph, 5) == {"dp": same(7 / 8 * m * (2 * gathered + size * ALL))}
    late = training_step(small_job(**job, grad_dtype="bf16", accumulate=True))
    assert sent(late) == {"dp": same(7 / 8 * (2 * m * gathered + 2 * ALL))}


def test_no_shard_is_data_parallel(small_job: Make) -> None:
    """2 (N - 1) G / N per microbatch, or per step without synchronisation between."""
    for accumulate, times in ((False, 4), (True, 1)):
        job = small_job(dp=8, sharding=kinds.fsdp1(8, "NO_SHARD"), accumulate=accumulate)
        assert sent(training_step(job)) == {"dp": same(times * 2 * 7 / 8 * 4 * ALL)}


@pytest.mark.parametrize(("n", "r"), [(2, 4), (4, 2), (2, 3)])
def test_hybrid_sharding(small_job: Make, n: int, r: int) -> None:
    """3 (n - 1) G / n inside and 2 (R - 1) G / (R n) across, the root but twice inside."""
    g, root = 2 * ALL, 2 * ROOT
    for sharding, gathered in (
        (kinds.fsdp1(n * r, "HYBRID_SHARD", shard=n), 2 * g - root),
        (kinds.fsdp1(n * r, "_HYBRID_SHARD_ZERO2", shard=n), g),
        (kinds.fsdp2(n * r, shard=n), 2 * g - root),
        (kinds.yafsdp(n * r, shard=n), 2 * g - root),
    ):
        job = small_job(dp=n * r, microbatches=1, sharding=sharding, grad_dtype="bf16")
        graph = training_step(job)
        for rank in (0, n * r - 1):
            assert sent(graph, rank) == {
                "shard": same((n - 1) / n * (gathered + g)),
                "replicate": same(2 * (r - 1) / (r * n) * g),
            }
        groups = {w.ranks for w in graph.works if getattr(w, "dimension", "") == "shard"}
        assert groups == {tuple(range(k * n, k * n + n)) for k in range(r)}
        groups = {w.ranks for w in graph.works if getattr(w, "dimension", "") == "replicate"}
        assert groups == {tuple(range(k, n * r, n)) for k in range(n)}


@pytest.mark.parametrize(("n", "r", "m"), [(2, 4, 3), (4, 2, 1), (2, 3, 4)])
@pytest.mark.parametrize("pp", [1, 2])
def test_copies_are_summed_once(small_job: Make, n: int, r: int, m: int, pp: int) -> None:
    """m scatters of G inside, one sum of G / n across: 2 (R - 1) G / (R n) whatever m is; and the
    gradients that stay are a share."""
    sharding = kinds.fsdp2(n * r, shard=n, replicate="once")
    job = small_job(dp=n * r, pp=pp, microbatches=m, sharding=sharding, tied=False)
    graph, each = training_step(job), training_step(_each(job))
    whole = L // pp * LAYER + V * H + (32 if pp > 1 else 34) * H + (pp == 1) * V * H
    g = 4 * whole
    assert sent(graph)["replicate"] == same(2 * (r - 1) / (r * n) * g)
    assert sent(graph)["replicate"] == same(sent(each)["replicate"] / m)
    assert sent(graph)["shard"] == sent(each)["shard"]
    assert graph.persistent[0]["gradients"] == g / n
    last = [graph.microbatch[i] for i in range(len(graph)) if _name(graph, i) == "grad_all_reduce"]
    assert set(last) == {m - 1}


def _each(job: Job) -> Job:
    sharding = job.data.sharding
    assert sharding is not None
    return with_data(job, sharding=replace(sharding, once=False))


def _name(graph: Graph, i: int) -> str:
    return graph.names[graph.name[i]]


def test_resharding_to_a_smaller_group(small_job: Make) -> None:
    """FSDP2's reshard_after_forward = 4: the backward gathers among neighbours, (4 - 1) G / 4."""
    sharding = kinds.fsdp2(8, reshard_after_forward=4)
    graph = training_step(small_job(dp=8, microbatches=1, sharding=sharding, grad_dtype="bf16"))
    assert sent(graph, 6) == {
        "dp": same(7 / 8 * 2 * 2 * ALL),
        "reshard": same(3 / 4 * 2 * L * LAYER),
    }


@pytest.mark.parametrize("keep", [False, True])
def test_with_a_pipeline(small_job: Make, keep: bool) -> None:
    """Layers are gathered for each microbatch, each way; what is kept once per step."""
    p, n, m = 2, 4, 5
    sharding = kinds.fsdp2(n, reshard_after_forward=not keep)
    graph = training_step(small_job(pp=p, dp=n, microbatches=m, sharding=sharding, tied=False))
    ends = (V * H + 32 * H, V * H + 2 * H)
    layers = L // p * LAYER
    for rank, root in ((0, ends[0]), (n * p - 1, ends[1])):
        gathered = layers + root if keep else 2 * m * layers + root
        want = (n - 1) / n * (2 * gathered + 4 * m * (layers + root))
        assert sent(graph, rank)["dp"] == same(want)


@pytest.mark.parametrize(
    ("sharding", "zero", "weights", "gradients", "optimizer"),
    [
        (None, 0, 1, 1, 1),
        (None, 1, 1, 1, 4),
        (None, 2, 1, 4, 4),
        (kinds.zero3(4), 3, 4, 4, 4),
        (kinds.fsdp2(4), 0, 4, 4, 4),
        (kinds.fsdp1(4, "NO_SHARD"), 0, 1, 1, 1),
        (kinds.fsdp2(4, shard=2), 0, 2, 2, 2),
    ],
)
@pytest.mark.parametrize(("grad", "size"), [("bf16", 2), ("fp32", 4)])
def test_persistent_bytes(
    small_job: Make,
    sharding: Flow | None,
    zero: int,
    weights: int,
    gradients: int,
    optimizer: int,
    grad: str,
    size: int,
) -> None:
    """2 + 2 + 12 bytes per parameter, each over the ranks that share it; 4 of fp32 gradients."""
    t, p = 2, 2
    job = small_job(tp=t, pp=p, dp=4, grad_dtype=grad, zero=zero, sharding=sharding)
    graph = training_step(job)
    split = 12 * H * H + 7 * H
    for rank in range(t * p * 4):
        first = rank < t * 4
        ends = V * H // t + (32 * H if first else 2 * H)
        count = L // p * (split // t + 6 * H) + ends
        held = graph.persistent[rank]
        assert held["weights"] == 2 * count / weights
        assert held["gradients"] == size * count / gradients
        assert held["optimizer"] == 12 * count / optimizer
        assert held.keys() - {"global_buffer"} == {"weights", "gradients", "optimizer"}
    if gradients > 1:
        late = training_step(accumulating(job)).persistent[0]
        assert late["gradients"] == graph.persistent[0]["gradients"] * gradients


def accumulating(job: Job) -> Job:
    parallelism = job.parallelism.model_copy(update={"accumulate": True})
    return with_data(replace(job, parallelism=parallelism), sharding=job.data.sharding)


def persistent(held: Mapping[str, float]) -> float:
    """Bytes of weights, gradients and optimizer."""
    return held["weights"] + held["gradients"] + held["optimizer"]


def test_table_1_of_the_zero_paper(small_job: Make) -> None:
    """7.5 B parameters on 64 GPUs, GB = 1e9 (Rajbhandari et al. 2019, Table 1)."""
    for zero, published in ((0, 120.0), (1, 31.4), (2, 16.6), (3, 1.88)):
        sharding = kinds.zero3(64) if zero == 3 else None
        job = small_job(dp=64, microbatches=1, zero=zero, grad_dtype="bf16", sharding=sharding)
        held = persistent(training_step(job, [Lane(0, 0, 0)]).persistent[0])
        assert round(held / ALL * 7.5, 2 if zero == 3 else 1) == published


def test_the_update_is_of_a_rank_s_share(small_job: Make) -> None:
    """Adam moves 28 bytes per parameter of the shard, and no parameters are gathered after it."""
    for sharding, n in ((kinds.fsdp2(8), 8), (kinds.fsdp2(8, shard=2), 2)):
        graph = training_step(small_job(dp=8, sharding=sharding))
        adam = graph.names.index("adam")
        i = int((graph.name == adam).argmax())
        assert graph.works[graph.work[i]].bytes == 28 * ALL / n  # type: ignore[union-attr]
        after = {graph.op(k).name for k in range(i, len(graph)) if graph.rank[k] == graph.rank[i]}
        assert "param_all_gather" not in after
        norm = {w.ranks for w in graph.works if getattr(w, "dimension", "") == "model"}
        assert {len(ranks) for ranks in norm} == {n}
