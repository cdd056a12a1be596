"""Overlapped forward-backward pairs in a recipe, and pipelines that serve two directions."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from schedules import Pair
from sim.analysis.traffic import bytes_sent
from sim.builder.training_step import training_step
from sim.memory.curve import peaks
from sim.runs import check
from sim.runs.run import load, run
from sim.timeline import Timeline

RECIPE = Path(__file__).parents[3] / "validation/recipes/zero_bubble_14.6b_1f1b.toml"
SMALL = {
    "model.layers": 16,
    "cluster.gpus": 8,
    "parallelism.pp": 4,
    "parallelism.tp": 2,
    "training.global_batch": 16,
    "schedule.layers_per_stage": None,
    "parallelism.p2p": "direction",
}
PAIRS = ("serial", "fused", "shared")
NAMES = ("dualpipe", "dualpipe_v")


@pytest.fixture(scope="module")
def ran() -> dict[tuple[str, str], object]:
    return {
        (name, pair): run(RECIPE, SMALL | {"schedule.name": name, "schedule.pair": pair})
        for name in NAMES
        for pair in PAIRS
    }


def spans(timeline: Timeline, rank: int) -> dict[tuple[int, int, bool], tuple[float, float]]:
    """First start and last end of the kernels of each (stage, microbatch, whether forward)."""
    table = timeline.to_pandas()
    mine = table[(table["rank"] == rank) & (table.microbatch >= 0)]
    mine = mine[mine.stream.isin(["compute", "compute 2"])]
    forward = (mine.phase == "F").rename("forward")
    groups = mine.groupby(["stage", "microbatch", forward])
    first, last = groups.start.min(), groups.end.max()
    return {key: (first[key], last[key]) for key in first.index}  # type: ignore[misc]


def paired(result, rank: int) -> list[tuple[tuple[float, float], tuple[float, float]]]:  # type: ignore[no-untyped-def]
    """When the forward and the backward of each pair of a pipeline rank ran."""
    at = spans(result.timeline, int(result.job.ranks[0, 0, 0, rank]))
    return [
        (
            at[pair.forward.stage, pair.forward.microbatch, True],
            at[pair.backward.stage, pair.backward.microbatch, False],
        )
        for pair in result.job.plan[rank]
        if isinstance(pair, Pair)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_members_of_a_shared_pair_start_together_and_are_joined(ran, name: str) -> None:  # type: ignore[no-untyped-def]
    """Serial and fused ones run one after the other; what follows waits for both."""
    for rank in range(4):
        for forward, backward in paired(ran[name, "shared"], rank):
            assert forward[0] == backward[0]
        for (one, other), (nxt, _) in pairwise(paired(ran[name, "shared"], rank)):
            assert nxt[0] >= max(one[1], other[1])
        for pair in ("serial", "fused"):
            for forward, backward in paired(ran[name, pair], rank):
                assert forward[1] <= backward[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_pair_that_shares_hides_what_waits_one_after_the_other(ran, name: str) -> None:  # type: ignore[no-untyped-def]
    """Collectives of one member run beside kernels of the other: less is exposed, no time lost.

    And a fused pair sends later than a serial one, so it is never faster.
    """
    seconds = {pair: ran[name, pair].timeline.seconds for pair in PAIRS}
    exposed = {pair: ran[name, pair].summary["time_s"]["exposed"]["tp"]["mean"] for pair in PAIRS}
    assert exposed["shared"] < 0.8 * exposed["serial"]
    assert seconds["shared"] < seconds["serial"] <= seconds["fused"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_how_pairs_run_changes_no_work(ran, name: str) -> None:  # type: ignore[no-untyped-def]
    """Same collectives and same FLOPs."""
    graphs = [ran[name, pair].timeline.graph for pair in PAIRS]
    sent = [bytes_sent(graph)["tp"] for graph in graphs]
    assert sent[0] == sent[1] == sent[2]
    flops = [
        {
            graph.works[w]: n
            for w, n in enumerate(np.bincount(graph.work))
            if hasattr(graph.works[w], "flops")
        }
        for graph in graphs
    ]
    assert flops[0] == flops[1] == flops[2]


def test_two_kernels_side_by_side_take_as_long_as_one_after_the_other() -> None:
    """Without communication nothing is gained: the GPU is shared, not doubled.

    tp = 1: a rank of the pipeline computes or waits for a neighbour; its kernels' work is the same.
    """
    one = SMALL | {
        "simulation.clock": "boost", "parallelism.tp": 1, "cluster.gpus": 4,
        "schedule.name": "dualpipe_v",
    }  # fmt: skip
    serial = run(RECIPE, one | {"schedule.pair": "serial"})
    shared = run(RECIPE, one | {"schedule.pair": "shared"})
    for rank in range(4):
        for (f, b), (f2, b2) in zip(paired(serial, rank), paired(shared, rank), strict=True):
            alone = (f[1] - f[0]) + (b[1] - b[0])
            together = max(f2[1], b2[1]) - f2[0]
            assert together == pytest.approx(alone, rel=0.05)  # p2p beside it holds SMs


def test_dualpipe_holds_every_parameter_twice_and_sums_their_gradients(ran) -> None:  # type: ignore[no-untyped-def]
    """Twice the weights of a V; each rank and its opposite all-reduce their gradients."""
    result = ran["dualpipe", "serial"]
    v = ran["dualpipe_v", "serial"]
    for persistent in ("weights", "gradients", "optimizer"):
        total = sum(of[persistent] for of in result.timeline.graph.persistent.values())
        once = sum(of[persistent] for of in v.timeline.graph.persistent.values())
        assert total == pytest.approx(2 * once)
    graph = result.timeline.graph
    names = np.array(graph.names)[graph.name]
    twins = np.flatnonzero(names == "twin_grad_all_reduce")
    groups = [graph.works[graph.work[i]].ranks for i in twins]
    assert groups == [(0, 6), (2, 4), (2, 4), (0, 6)]
    sent = bytes_sent(graph)["twin"]
    for rank, of in graph.persistent.items():
        assert sent[rank] == of["gradients"]  # 2 (n - 1) / n of the buffer, n = 2


def test_zero_1_sums_shares_of_gradients() -> None:
    """Over dp the gradients are scattered first; the twins sum what is left on each."""
    two = SMALL | {
        "parallelism.tp": 1, "schedule.name": "dualpipe", "parallelism.zero": 1,
    }  # fmt: skip
    graph = run(RECIPE, two).timeline.graph
    for rank, of in graph.persistent.items():
        assert bytes_sent(graph)["twin"][rank] == of["gradients"] / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zb_v", "dualpipe"])
def test_a_rank_with_both_ends_holds_a_tied_matrix_once(name: str) -> None:
    """Untied it holds V h / t parameters more, 2 + 4 + 12 bytes of each (fp32 gradients)."""
    way = SMALL | {"schedule.name": name}
    tied, untied = (run(RECIPE, way | {"model.tied": tied}) for tied in (True, False))
    rows = -(-tied.job.model.vocab // 256) * 256 // 2  # padded to 128 x tp, one of two ranks
    per = {"weights": 2, "gradients": 4, "optimizer": 12}
    for rank in (0, 6) if name == "dualpipe" else (0,):
        one, two = (of.timeline.graph.persistent[rank] for of in (tied, untied))
        for category, size in per.items():
            assert two[category] - one[category] == rows * tied.job.model.hidden * size
    assert "embedding_grad_all_reduce" not in tied.timeline.graph.names


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_that_of_check(ran, name: str) -> None:  # type: ignore[no-untyped-def]
    """One activation more than ranks, as the schedules claim; the check finds the same peaks."""
    result = ran[name, "serial"]
    for walked, peak in zip(
        check.check(result.recipe)["memory"], peaks(result.timeline), strict=True
    ):
        assert walked["peak_bytes"] == pytest.approx(peak.peak_bytes, rel=1e-9)


def test_a_stage_on_two_ranks_has_buckets_as_each_rank_ends_it(small_job) -> None:  # type: ignore[no-untyped-def]
    """One rank ends its stage with a W, the other with a whole B: both reduce all gradients."""
    job = small_job(pp=4, dp=2, microbatches=8, schedule="dualpipe", bucket=2e4)
    graph = training_step(job)
    per_rank = bytes_sent(graph)["dp"]
    for rank, of in graph.persistent.items():
        assert per_rank[rank] == of["gradients"]  # all-reduce: 2 (n - 1) / n, n = 2


def test_batched_exchanges_of_two_ways_are_refused_with_the_cycle() -> None:
    with pytest.raises(ValueError, match=r"deadlock: rank [01]'s exchange before position"):
        run(RECIPE, SMALL | {"schedule.name": "dualpipe", "parallelism.p2p": "batched"})


def test_pairs_are_shared_unless_said_otherwise() -> None:
    assert load(RECIPE, SMALL).schedule.pair == "shared"
