"""ZeRO-1 inside instances, gradients summed across them: bytes, groups, order, memory, refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from sim.analysis.traffic import bytes_sent
from sim.builder.job import Job
from sim.builder.program import Kernel
from sim.builder.strategies.data import Bucket
from sim.builder.strategies.optimizer import Tail, tail
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.graph import Communication, Graph
from sim.machine import cluster as clusters
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import Result, job_of, prepare, run
from sim.strategies.offload import optimizer as host_optimizer
from tests.small import replicas

pytestmark = pytest.mark.slow

H, L, V = 64, 8, 512
ALL = L * (12 * H * H + 13 * H) + V * H + 32 * H + 2 * H
Make = Callable[..., Job]
SHAPES = [(4, 2), (8, 2), (8, 4), (6, 3)]


def sent(graph: Graph, rank: int = 0) -> dict[str, float]:
    return {name: of[rank] for name, of in bytes_sent(graph).items() if name != "model"}


def same(size: float) -> object:
    return pytest.approx(size, rel=1e-12)


def groups(graph: Graph, dimension: str) -> set[tuple[int, ...]]:
    works = (work for work in graph.works if isinstance(work, Communication))
    return {work.ranks for work in works if work.dimension == dimension}


@pytest.mark.parametrize(("dp", "n"), SHAPES)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("overlap", [False, True])
def test_bytes_of_a_step(small_job: Make, dp: int, n: int, ahead: bool, overlap: bool) -> None:
    """With s = dp / n: (s - 1) / s of 4-byte gradients and 2-byte weights inside, 2 (n - 1) / n of
    a shard of gradients across, once for three microbatches."""
    switches = {"overlap_param_gather": ahead and overlap, "overlap_grad_reduce": overlap}
    job = small_job(dp=dp, zero=1, optimizer_instances=n, microbatches=3, **switches)
    graph, s = training_step(job), dp // n
    for rank in (0, dp - 1):
        assert sent(graph, rank) == {
            "shard": same((s - 1) / s * (4 + 2) * ALL),
            "replicate": same(2 * (n - 1) / n * 4 * ALL / s),
        }


@pytest.mark.parametrize(("dp", "n"), SHAPES)
@pytest.mark.parametrize(("tp", "pp", "order"), [(1, 1, ""), (2, 2, ""), (2, 2, "tp-cp-ep-pp-dp")])
def test_groups(small_job: Make, dp: int, n: int, tp: int, pp: int, order: str) -> None:
    """Runs of replicas inside, places in them across; each replica is met once, so sums are whole;
    a norm is of one instance, in which each parameter's state is once."""
    more = {"order": order} if order else {}
    job = small_job(tp=tp, pp=pp, dp=dp, zero=1, optimizer_instances=n, **more)
    graph = training_step(job)
    inside, across = groups(graph, "shard"), groups(graph, "replicate")
    assert {len(g) for g in inside} == {dp // n}
    assert {len(g) for g in across} == {n}
    norms = groups(graph, "model")
    for rank in range(tp * pp * dp):
        (mine,) = (g for g in inside if rank in g)
        (others,) = (g for g in across if rank in g)
        met = sorted(r for other in others for g in inside if other in g for r in g)
        assert met == list(job.mesh.group_of(rank, "dp"))
        assert list(mine) == [r for r in job.mesh.group_of(rank, "dp") if r in mine]
        (norm,) = (g for g in norms if rank in g)
        assert len(norm) == tp * pp * dp // n
        assert {*mine} <= {*norm}
        assert {*norm} & {*others} == {rank}


@pytest.mark.parametrize(("dp", "n"), SHAPES)
def test_bytes_kept(small_job: Make, dp: int, n: int) -> None:
    """12 bytes a parameter over dp / n; gradients and weights whole."""
    held = training_step(small_job(dp=dp, zero=1, optimizer_instances=n)).persistent[dp - 1]
    assert held["optimizer"] == same(12 * ALL / (dp // n))
    assert (held["gradients"], held["weights"]) == (4 * ALL, 2 * ALL)


def test_one_instance_is_zero_1(small_job: Make) -> None:
    one, plain = (
        training_step(small_job(dp=4, zero=1, **k)) for k in ({"optimizer_instances": 1}, {})
    )
    assert [one.op(i) for i in range(len(one))] == [plain.op(i) for i in range(len(plain))]


def _rows(graph: Graph, *names: str) -> Sequence[int]:
    """Ops of the first rank, of some names."""
    mine = np.flatnonzero(graph.rank == graph.rank[0])
    return [i for i in mine.tolist() if graph.names[graph.name[i]] in names]


def test_a_bucket_is_summed_before_the_next_is_scattered(small_job: Make) -> None:
    """As on Megatron's communication stream: one by one, each sum behind its scatter; and beside
    the backward."""
    job = small_job(
        dp=8, zero=1, optimizer_instances=2, sequence=512, micro_batch=4, microbatches=2
    )
    _, graph, machine = prepare(job, clusters.load("dgx_a100", 8))
    done = simulate(graph, machine)
    rows = _rows(graph, "grad_reduce_scatter", "grad_all_reduce")
    names = [graph.names[graph.name[i]] for i in rows]
    assert len(rows) > 8
    assert names == ["grad_reduce_scatter", "grad_all_reduce"] * (len(rows) // 2)
    assert {graph.streams[graph.stream[i]] for i in rows} == {"dp"}
    for earlier, later in pairwise(rows):
        assert done.start[later] >= done.end[earlier]
    backward = [i for i in range(len(graph)) if graph.phase[i] == 4 and graph.rank[i] == 0]
    assert done.start[rows[1]] < done.end[backward].max()
    (norm,) = _rows(graph, "grad_norm")
    assert done.start[norm] >= done.end[rows[-1]]


@pytest.mark.parametrize("shape", [{"dp": 8}, {"dp": 4, "tp": 2, "sp": True}, {"dp": 4, "pp": 2}])
def test_folding_changes_nothing(small_job: Make, shape: dict[str, Any]) -> None:
    job, cluster = small_job(zero=1, optimizer_instances=2, **shape), clusters.load("dgx_a100", 8)
    seconds = []
    for fold in (True, False):
        _, graph, machine = prepare(job, cluster, fold)
        seconds.append(simulate(graph, machine).seconds)
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


def test_the_host_gets_what_is_summed() -> None:
    """A quarter of the parameters, of a shard of a half: 4 bytes each, behind the sum."""
    data = replicas(
        4, zero=1, optimizer_instances=2, overlap_grad_reduce=False, offload={"optimizer": 0.25}
    )
    bucket = Bucket(1200, 9, frozenset({0}))
    items = tail(Tail(1200), [[bucket]], data, 1)
    names = [item.name for item in items]
    to_host = items[names.index("grad_to_host")]
    assert isinstance(to_host, Kernel)
    assert names.count("grad_to_host") == 1
    assert to_host.work.bytes == 0.25 * 4 * 1200 / 2
    assert [names[i] for i in to_host.needs] == ["grad_all_reduce"]
    assert host_optimizer.STREAM in {item.stream for item in items}


def recipe(topology: str = "dgx_h100", gpus: int = 16, **tables: Any) -> recipe_file.Recipe:
    base: dict[str, Any] = {
        "model": {"preset": "llama3-8b", "layers": 2, "vocab": 1024, "sequence": 512},
        "cluster": {"topology": topology, "gpus": gpus},
        "training": {"global_batch": 16},
    }
    for name, keys in tables.items():
        base[name] = {**base.get(name, {}), **keys}
    return recipe_file.parse(base)


MOE = {"experts": 8, "topk": 2, "expert_ffn": 512}
DENSE = 2 * (4096 * (4096 + 2 * 1024) + 4096**2 + 2 * 4096 + 4096 * 8) + 2 * 1024 * 4096 + 4096
EXPERTS = 2 * 8 * 3 * 4096 * 512


@pytest.mark.parametrize(("ep", "n"), [(2, 2), (4, 2), (4, 4), (1, 4)])
def test_experts_are_split_inside_instances_too(ep: int, n: int) -> None:
    """Over edp / n of the 16 / ep ranks that hold the same ones; nothing is left to split where
    that is 1."""
    split = {"ep": ep, "zero": 1, "optimizer_instances": n}
    result: Result = run(recipe(model=MOE, parallelism=split))
    graph, s, own = result.timeline.graph, 16 // n, 16 // ep // n
    said = sent(graph, 0)
    held = (DENSE, EXPERTS // ep) if ep > 1 else (DENSE + EXPERTS, 0)
    assert said["shard"] == same((s - 1) / s * 6 * held[0])
    assert said["replicate"] == same(2 * (n - 1) / n * 4 * held[0] / s)
    if ep > 1:
        assert said.get("edp_shard", 0.0) == same((own - 1) / own * 6 * held[1])
        assert said["edp_replicate"] == same(2 * (n - 1) / n * 4 * held[1] / own)
    assert graph.persistent[0]["optimizer"] == same(12 * (held[0] / s + held[1] / own))
    assert groups(graph, "model") == {tuple(range(s))}
    peak = result.summary["memory"][0]["peak_bytes"]
    assert check(result.recipe)["memory"][0]["peak_bytes"] == pytest.approx(peak, rel=1e-9)


def test_ranks_of_one_sequence_count() -> None:
    """cp 2 x dp 8 in two instances of 8."""
    split = {"cp": 2, "zero": 1, "optimizer_instances": 2}
    graph = training_step(job_of(recipe(parallelism=split)))
    assert groups(graph, "shard") == {tuple(range(8)), tuple(range(8, 16))}
    assert groups(graph, "replicate") == {(k, k + 8) for k in range(8)}


REFUSED = [
    ({"optimizer_instances": 2},
     "optimizer_instances = 2 needs zero = 1: each instance splits the optimizer state"),
    ({"zero": 2, "optimizer_instances": 2}, "optimizer_instances = 2 needs zero = 1"),
    ({"zero": 1, "optimizer_instances": 3}, "must divide dp x cp = 16 into runs of two or more"),
    ({"zero": 1, "optimizer_instances": 16}, "for runs of one rank zero = 0 would do"),
    ({"zero": 1, "optimizer_instances": 0}, "optimizer_instances = 0 must be at least 1"),
]  # fmt: skip
EXPERT = [
    ({"ep": 8, "optimizer_instances": 4}, "must divide the 2 ranks that hold the same experts"),
    ({"ep": 2, "optimizer_instances": 2, "order": "dp-tp-cp-ep-pp"}, 'order to end with "dp-pp"'),
]


@pytest.mark.parametrize(
    ("model", "keys", "sentence"),
    [*(({}, *one) for one in REFUSED), *((MOE, {"zero": 1, **k}, said) for k, said in EXPERT)],
)
def test_a_refusal_is_one_sentence(
    model: dict[str, Any], keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe(model=model, parallelism=keys)
    assert sentence in str(error.value)
