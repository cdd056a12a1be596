"""Folding: one rank simulated for several that cannot differ gives the times of all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sim.builder.groups import stand_ins
from sim.builder.job import Job
from sim.engine import Stats, simulate
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.runs import latencies
from sim.runs.fold import Lanes, candidates
from sim.runs.run import prepare
from sim.timeline import Timeline

pytestmark = pytest.mark.slow

Make = Callable[..., Job]
SHARED_NICS = """
name = "a100_4_nics"
base = "dgx_a100"

[node.nic]
count = 4
source = "8 GPUs on 4 NICs, two on each, as in many clouds' nodes; a test's own"
"""


def run(job: Job, cluster: Cluster, fold: bool = True) -> tuple[Lanes, Timeline]:
    lanes, graph, machine = prepare(job, cluster, fold)
    return lanes, simulate(graph, machine)


def check(job: Job, cluster: Cluster, axes: tuple[str, ...]) -> None:
    """Folded along ``axes``; steps and every op of every simulated rank agree within 1e-9."""
    lanes, folded = run(job, cluster)
    none, whole = run(job, cluster, fold=False)
    assert lanes.axes == axes
    assert none.axes == ()
    assert set(whole.graph.ranks().tolist()) == set(range(job.mesh.world))
    stands_for = int(np.prod([job.mesh.degree(axis) for axis in axes]))
    assert len(folded.graph) * stands_for == len(whole.graph)
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-9)
    of = stand_ins(job, lanes.atoms)
    for rank in folded.graph.ranks().tolist():
        assert folded.graph.stands_for[rank] == stands_for == (of == rank).sum()
    assert stand_ins(job, ()).tolist() == [*range(job.mesh.world)]
    for rank in range(job.mesh.world):
        mine = np.flatnonzero(folded.graph.rank == of[rank])
        theirs = np.flatnonzero(whole.graph.rank == rank)
        for ours, all_ranks in ((folded.start, whole.start), (folded.end, whole.end)):
            gap = np.abs(ours[mine] - all_ranks[theirs]).max()
            assert gap <= 1e-9 * whole.seconds, (rank, gap)


@pytest.mark.parametrize(
    ("topology", "gpus", "case", "axes"),
    [
        ("dgx_a100", 8, {"tp": 8}, ("tp",)),
        ("dgx_a100", 16, {"tp": 2, "dp": 4, "pp": 2}, ("tp", "dp")),
        ("dgx_a100", 16, {"dp": 8, "pp": 2, "zero": 1, "bucket": 2e5}, ("dp",)),
        ("dgx_h100", 16, {"tp": 4, "dp": 2, "pp": 2, "sp": True}, ("tp", "dp")),
        ("dgx_h100", 8, {"tp": 4, "dp": 2, "sp": True, "tp_overlap": "copies"}, ("tp", "dp")),
        ("dgx_h100", 16, {"dp": 16, "zero": 1, "overlap_param_gather": True}, ("dp",)),
        ("dgx_h100", 32, {"tp": 8, "dp": 2, "pp": 2, "tp_overlap": True, "sp": True}, ("tp", "dp")),
        ("dgx_h100", 16, {"tp": 2, "dp": 2, "pp": 4, "chunks": 2, "microbatches": 8}, ("tp", "dp")),
    ],
)
def test_folded_is_unfolded(
    small_job: Make, topology: str, gpus: int, case: dict[str, object], axes: tuple[str, ...]
) -> None:
    """Uniform jobs on both machines, along tp, dp and both, collectives inside and across nodes."""
    check(
        small_job(microbatches=case.pop("microbatches", 4), **case),
        clusters.load(topology, gpus),
        axes,
    )


@pytest.mark.parametrize("case", [{"tp": 2, "dp": 4, "pp": 2}, {"tp": 4, "pp": 4}], ids=str)
def test_loads_of_folded_ranks_stay_on_the_links(
    small_job: Make, tmp_path: Path, case: dict[str, int]
) -> None:
    """8 GPUs on 4 NICs: two ranks of a node share one, though only one of them is simulated."""
    path = tmp_path / "a100_4_nics.toml"
    path.write_text(SHARED_NICS)
    shared, own = clusters.load(str(path), 16), clusters.load("dgx_a100", 16)
    job = small_job(micro_batch=16, sequence=256, **case)
    axes = tuple(axis for axis in ("tp", "dp") if axis in case)
    check(job, shared, axes)
    assert run(job, shared)[1].seconds > run(job, own)[1].seconds * 1.001


@pytest.mark.parametrize(("gpus", "case"), [(12, {"dp": 6, "pp": 2}), (12, {"dp": 3, "pp": 4})])
def test_replicas_that_differ_are_all_simulated(
    small_job: Make, gpus: int, case: dict[str, int]
) -> None:
    """Some replicas of a stage share a node with one neighbour, some cross the fabric to theirs."""
    lanes, timeline = run(
        small_job(micro_batch=16, sequence=256, **case), clusters.load("dgx_a100", gpus)
    )
    assert lanes.axes == ()
    assert len(timeline.graph.ranks()) == gpus
    assert dict(timeline.graph.stands_for) == {}


def test_ways_to_fold_start_with_the_fewest_ranks(small_job: Make) -> None:
    """Both axes, dp, tp, nothing; an axis of one rank is none."""
    ways = list(candidates(small_job(tp=2, dp=3)))
    assert [way.axes for way in ways] == [("tp", "dp"), ("dp",), ("tp",), ()]
    assert [len(way.simulated) for way in ways] == [1, 2, 3, 6]
    assert [way.axes for way in candidates(small_job(dp=3))] == [("dp",), ()]
    assert [way.axes for way in candidates(small_job())] == [()]


THREE_TIERS = """
base = "dgx_h100"
name = "three_tiers"
[node]
gpus = 1
source = "a test's own, as what follows"
[node.nic]
count = 1
source = "as above"
[fabric]
kind = "{kind}"
latency = "{hop} us"
nodes_per_leaf = 1
nodes_per_spine = 2
max_nodes = 64
source = "as above"
"""
LONG = {"pp": 3, "dp": 4, "microbatches": 12, "layers": 6, "order": "tp-cp-ep-pp-dp"}


def three_tiers(tmp_path: Path, kind: str = "rail", hop: float = 4.9) -> Cluster:
    path = tmp_path / f"{kind}_{hop}.toml"
    path.write_text(THREE_TIERS.format(kind=kind, hop=hop))
    return clusters.load(str(path), 12)


@pytest.mark.parametrize("kind", ["fat_tree", "rail"])
@pytest.mark.parametrize("hop", [0.3, 4.9])
def test_replicas_of_unlike_latency_are_all_simulated(
    small_job: Make, tmp_path: Path, kind: str, hop: float
) -> None:
    """Some messages between stages cross the core, others not, and that adds up along the pipeline.

    A dp of which each replica's stages are as far apart folds as ever.
    """
    cluster, one = three_tiers(tmp_path, kind, hop), small_job(**LONG)
    lanes, auto = run(one, cluster)
    assert lanes.axes == ()
    assert auto.end.tobytes() == run(one, cluster, fold=False)[1].end.tobytes()
    apart = small_job(**{**LONG, "order": "tp-cp-ep-dp-pp"})
    assert run(apart, cluster)[0].axes == ("dp",)


@pytest.mark.parametrize("microbatches", [1, 5, 12])
def test_large_steps_are_folded_and_say_how_much_too_long(
    small_job: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, microbatches: int
) -> None:
    """As long as that is little of the step; it is never less than what folding adds."""
    job, cluster = small_job(**(LONG | {"microbatches": microbatches})), three_tiers(tmp_path)
    whole = run(job, cluster)[1].seconds
    monkeypatch.setattr(latencies, "FEW_OPS", 0)
    assert run(job, cluster)[0].axes == ()
    monkeypatch.setattr(latencies, "SHARE", 1.0)
    lanes, graph, machine = prepare(job, cluster)
    assert lanes.axes == ("dp",)
    most = latencies.later(graph, machine)
    stats = Stats(asks_later=True)
    assert 0.0 < simulate(graph, machine, stats=stats).seconds - whole <= most
    assert stats.later == most  # found with the segments of the step
    hops = 2 * 4.9e-6  # up to the core and down again
    chain = 2 * (microbatches + 1)  # messages, one behind another: down and up by turns
    assert most <= 2 * chain * hops
