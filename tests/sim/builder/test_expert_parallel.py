"""Expert parallelism in a whole step: who meets whom, how much they send, who waits for whom."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.analysis.breakdown import breakdown
from sim.analysis.traffic import bytes_sent
from sim.machine import cluster as clusters
from sim.memory.curve import peaks
from sim.runs.run import Result, job_of, load, run
from sim.runs.stage_times import stage_timelines

pytestmark = pytest.mark.slow

RECIPE = """
cluster = { topology = "dgx_h100", gpus = 16 }
parallelism = { pp = 2, ep = 4, bucket_mb = 4 }
training = { global_batch = 32, grad_dtype = "fp32" }
[model]
layers = 8
hidden = 512
heads = 8
ffn = 1024
gated = true
activation = "silu"
vocab = 1024
sequence = 1024
attention = "flash"
dropout = 0.0
experts = 8
topk = 2
expert_ffn = 1024
"""
T, H, K, LAYERS, M = 1024, 512, 2, 4, 4  # tokens, hidden, topk, layers of a stage, microbatches


def same(one: Result, two: Result) -> bool:
    """Whether folded and unfolded agree within 1e-9 of the step on every op of the folded ranks."""
    for rank in one.timeline.graph.ranks().tolist():
        mine, theirs = (np.flatnonzero(of.timeline.graph.rank == rank) for of in (one, two))
        gap = np.abs(one.timeline.end[mine] - two.timeline.end[theirs]).max()
        if gap > 1e-9 * two.timeline.seconds:
            return False
    return True


def test_every_rank_sends_its_tokens_there_and_back(recipe: Path) -> None:
    """k T h bytes (N - 1) / N by dispatch and combine, forward and backward, of each layer."""
    graph = run(recipe).timeline.graph
    each = K * T * H * 2 * 3 / 4
    assert set(bytes_sent(graph)["ep"].values()) == {4 * each * LAYERS * M}


@pytest.mark.parametrize(("ep", "edp"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_experts_are_reduced_over_those_that_hold_them(recipe: Path, ep: int, edp: int) -> None:
    """Three matrices of each of 8 / ep experts and layer, in fp32; all else over all replicas."""
    graph = run(recipe, {"parallelism.ep": ep}).timeline.graph
    sent, experts = bytes_sent(graph), LAYERS * 8 // ep * 3 * H * 1024 * 4
    total = graph.persistent[0]["gradients"]
    apart = sent.get("edp", {}).get(0, 0.0)
    if ep == 1:
        assert apart == 0.0
        assert sent["dp"][0] == pytest.approx(2 * 7 / 8 * total)
        return
    assert apart == pytest.approx(2 * (edp - 1) / edp * experts)
    assert sent["dp"][0] == pytest.approx(2 * 7 / 8 * (total - experts))


def test_zero_1_splits_experts_over_their_own_replicas(recipe: Path) -> None:
    """12 bytes per parameter, over 8 replicas; of experts, over the 2 that hold the same."""
    persistent = run(recipe, {"parallelism.zero": 1}).timeline.graph.persistent[0]
    parameters, experts = persistent["weights"] / 2, LAYERS * 2 * 3 * H * 1024
    assert persistent["optimizer"] == pytest.approx(12 * ((parameters - experts) / 8 + experts / 2))


@pytest.mark.parametrize(
    "way",
    [
        {},
        {"parallelism.zero": 1, "parallelism.ep": 2},
        {"parallelism.tp": 2, "parallelism.sp": True},
        {"parallelism.tp": 2, "parallelism.sp": True, "parallelism.etp": 2, "parallelism.ep": 2},
        {"parallelism.cp": 2},
        {"model.load": {"kind": "zipf", "s": 0.8}, "parallelism.ep": 2},
        {"schedule.name": "dualpipe_v", "training.global_batch": 32},
    ],
    ids=str,
)
def test_folded_is_unfolded(recipe: Path, way: dict[str, object]) -> None:
    """However expert groups lie across tp, cp and dp."""
    folded, whole = (run(recipe, way | {"simulation.fold": fold}) for fold in ("auto", "none"))
    assert len(folded.timeline.graph) < len(whole.timeline.graph)
    assert whole.lanes.axes == ()
    assert same(folded, whole)


def test_groups_are_those_of_the_experts_mesh(recipe: Path) -> None:
    """ep inside dp, next to each other; what an expert's copies reduce, across."""
    job = job_of(load(recipe))
    result = run(recipe, {"simulation.fold": "none"})
    graph = result.timeline.graph
    for axis in ("ep", "edp"):
        works = [w for w in graph.works if getattr(w, "dimension", "") == axis]
        assert {w.ranks for w in works} == set(job.mesh.groups(axis))  # type: ignore[union-attr]


def test_an_uneven_load_makes_stragglers_and_hot_spots(recipe: Path) -> None:
    """The rank of the most wanted experts computes longest and holds most; the others wait."""
    zipf = {"model.load": {"kind": "zipf", "s": 1.0}}
    even, uneven = run(recipe), run(recipe, zipf)
    assert uneven.timeline.seconds > 1.1 * even.timeline.seconds
    of = breakdown(uneven.timeline)
    stage = np.flatnonzero(of.ranks < 4)  # the first expert group of the first stage
    assert int(np.argmax(of.compute[stage])) == 0
    assert of.waiting["ep"][0] < of.waiting["ep"][3]
    held = [peak.peak_bytes for peak in peaks(uneven.timeline)][:4]
    assert held[0] == max(held) > 1.05 * min(held)
    capped = run(recipe, zipf | {"model.capacity_factor": 1.0})
    assert capped.timeline.seconds < uneven.timeline.seconds


def test_overlap_hides_the_all_to_alls(recipe: Path) -> None:
    """Pairs of DualPipeV, and of interleaved 1F1B with overlap: beside the other's kernels."""
    large = {"training.global_batch": 64, "model.hidden": 1024, "model.sequence": 4096}
    for way in (
        {"schedule.name": "dualpipe_v"},
        {"schedule.name": "interleaved_1f1b", "schedule.overlap": True},
    ):
        exposed = {
            pair: run(recipe, large | way | {"schedule.pair": pair}).summary["time_s"]["exposed"][
                "ep"
            ]["mean"]
            for pair in ("serial", "shared")
        }
        assert exposed["shared"] < 0.75 * exposed["serial"]


def test_one_rank_of_experts_changes_nothing(recipe: Path) -> None:
    """ep = 1: no all-to-all, and the gradients of experts are reduced with all others."""
    graph = run(recipe, {"parallelism.ep": 1}).timeline.graph
    assert {"ep", "etp", "edp"}.isdisjoint(bytes_sent(graph))


def test_the_times_of_a_stage_count_its_all_to_alls(recipe: Path) -> None:
    """What a searched schedule is given: four all-to-alls of each layer more than without ep."""
    seconds = {}
    for ep in (1, 4):
        job = job_of(load(recipe, {"parallelism.ep": ep}))
        cluster = clusters.load("dgx_h100", 16)
        ran = stage_timelines(job, cluster, range(2, 6))
        names = np.array(ran["F"].graph.names)[ran["F"].graph.name]
        ranks = 4  # of the group, all simulated
        assert sum("all_to_all" in n for n in names.tolist()) == 2 * 4 * ranks * (ep > 1)
        seconds[ep] = ran["F"].seconds
    assert seconds[4] > seconds[1]
    assert run(recipe, {"schedule.name": "zb_1p"}).timeline.seconds > 0


def test_a_rank_without_tokens_waits_with_the_others(recipe: Path) -> None:
    """Its experts' kernels do nothing, all its collectives stay, and its gradients are reduced."""
    counts = [0, 0, 1, 1, 1, 1, 1, 1]
    result = run(recipe, {"model.load": {"kind": "histogram", "counts": counts}})
    graph, seconds = result.timeline.graph, result.timeline.end - result.timeline.start
    name = np.array(graph.names)[graph.name]
    products = np.isin(name, ["expert_fc1", "expert_fc1_dgrad", "expert_fc2_wgrad"])
    idle, busy = (products & (graph.rank == rank) for rank in (0, 1))
    assert idle.sum() == busy.sum() == 3 * LAYERS * M
    fixed = result.cluster.gpu.costs["gemm"]["bf16"]["fixed"]
    assert seconds[idle] == pytest.approx(float(fixed))
    assert seconds[busy].min() > 2 * float(fixed)
    for axis in ("ep", "edp", "dp"):
        sent = bytes_sent(graph)[axis]
        assert sent[0] == sent[1] == sent[2] == sent[3] > 0
