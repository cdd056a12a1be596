"""Several steps in a row: flushed pipelines repeat themselves, PipeDream never stops."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from schedules import pipedream
from sim.analysis.idle import bubble, idle
from sim.analysis.steps import ends, laps, one, steady
from sim.engine import simulate
from sim.graph import Builder, Fixed
from sim.machine.hardware import ideal
from sim.memory.curve import peaks
from sim.runs.run import load, run

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[3] / "validation/recipes/zero_bubble_14.6b_1f1b.toml"
SMALL = {
    "model.layers": 8,
    "model.tied": False,
    "cluster.gpus": 4,
    "parallelism.pp": 4,
    "training.global_batch": 8,
    "schedule.layers_per_stage": None,
    "parallelism.p2p": "direction",
    "simulation.clock": "boost",  # else windows of power reach over a step's end
}
DP = {"cluster.gpus": 8, "training.global_batch": 16}
FLUSHED = {
    "1F1B": {"schedule.name": "one_f_one_b"},
    "batched": {"schedule.name": "one_f_one_b", "parallelism.p2p": "batched"},
    "interleaved, replicas": {"schedule.name": "interleaved_1f1b", **DP},
    "zero 1": {"schedule.name": "zb_h1", "parallelism.zero": 1, **DP},
    "gathers ahead": {"schedule.name": "one_f_one_b", "parallelism.zero": 1,
        "parallelism.overlap_param_gather": True, **DP},
    "shared pairs": {"schedule.name": "dualpipe_v"},
}  # fmt: skip


@pytest.mark.parametrize("way", FLUSHED)
def test_flushed_steps_are_one_step_again_and_again(way: str) -> None:
    """Op by op, a step later: the norm of all gradients lies between two steps."""
    one, three = (run(RECIPE, SMALL | FLUSHED[way] | {"simulation.steps": n}) for n in (1, 3))
    n, length = len(one.timeline.graph), one.timeline.seconds
    graph, timeline = three.timeline.graph, three.timeline
    assert len(graph) == 3 * n
    start, end = (
        column[np.argsort(graph.step, kind="stable")] for column in (timeline.start, timeline.end)
    )
    head = np.array(one.timeline.graph.names)[one.timeline.graph.name]
    body = ~np.isin(head, ["zero_grads", "param_all_gather"])  # as early as their own rank is free
    for k in range(3):
        of = slice(k * n, (k + 1) * n)
        assert end[of][body] == pytest.approx(one.timeline.end[body] + k * length, rel=1e-6)
        waits = one.timeline.graph.microbatch >= 0
        late = start[of][body & waits] - k * length
        assert late.max() == pytest.approx(one.timeline.start[body & waits].max(), rel=1e-6)
    assert ends(timeline) == pytest.approx([length, 2 * length, 3 * length], rel=1e-9)
    assert three.summary["step_time_s"] == pytest.approx(one.summary["step_time_s"], rel=1e-9)


def test_figures_of_several_steps_are_those_of_one() -> None:
    way = SMALL | FLUSHED["zero 1"]
    one, four = (run(RECIPE, way | {"simulation.steps": n}).summary for n in (1, 4))
    assert four["bytes_sent"] == one["bytes_sent"]
    assert four["memory"][0]["peak_bytes"] == one["memory"][0]["peak_bytes"]
    for key in ("idle_share_of_step", "idle_over_ideal"):
        assert four["bubble"][key] == pytest.approx(one["bubble"][key], rel=1e-9)
    assert sum(four["critical_path_s"].values()) == pytest.approx(one["step_time_s"])
    assert four["time_s"]["compute"]["mean"] == pytest.approx(
        one["time_s"]["compute"]["mean"], rel=0.01
    )
    causes = four["bubble"]["by_cause_s"]
    assert causes["warm_up"] + causes["drain"] == pytest.approx(
        sum(one["bubble"]["by_cause_s"][name] for name in ("warm_up", "drain")), rel=0.05
    )


def updates_before(result, rank: int) -> list[int]:  # type: ignore[no-untyped-def]
    """How many updates of its weights a rank has begun before the forward of each microbatch."""
    table = result.timeline.to_pandas()
    mine = table[(table["rank"] == rank) & (table.stream == "compute")]
    first = mine[mine.phase == "F"].groupby("microbatch").start.min().to_numpy()
    done = np.sort(mine[mine.name == "adam"].start.to_numpy())
    return np.searchsorted(done, first).tolist()  # type: ignore[no-any-return]


def test_pipedream_uses_the_newest_weights_that_a_rank_has() -> None:
    """As many updates lie before each forward as the schedule claims (asserted by PipeDream)."""
    way = SMALL | {"schedule.name": "pipedream", "training.global_batch": 1}
    result = run(RECIPE, way)
    n = result.recipe.simulation.steps or 0
    for rank in range(4):
        claimed = [pipedream.version(4, rank, m) for m in range(n)]
        assert updates_before(result, rank) == claimed


@pytest.mark.parametrize("batch", [4, 6])
def test_2bw_uses_weights_that_exist(batch: int) -> None:
    """Of the newest two versions; both members of a batch's forwards and backwards use one."""
    way = SMALL | {"schedule.name": "pipedream", "training.global_batch": batch}
    result = run(RECIPE, way)
    for rank in range(4):
        there = updates_before(result, rank)
        used = [pipedream.version(4, rank, m, batch) for m in range(len(there))]
        assert all(now - 1 <= version <= now for version, now in zip(used, there, strict=True))


def test_pipedream_has_no_bubble_in_its_steady_state() -> None:
    """The slowest rank computes all the time, but for collectives and hops that are its own.

    1F1B of the same microbatches stops for its flush.
    """
    way = SMALL | {"schedule.name": "pipedream", "training.global_batch": 8}
    result = run(RECIPE, way)
    window = steady(result.timeline, *result.recipe.ramps)
    causes = idle(window.timeline).by_cause()
    stops = sum(
        causes.get(name, np.zeros(4)) for name in ("warm_up", "drain", "waiting", "dependency")
    )
    assert stops.min() < 0.003 * window.seconds
    flushed = run(RECIPE, way | {"schedule.name": "one_f_one_b"})
    assert result.summary["step_time_s"] < 0.8 * flushed.summary["step_time_s"]
    assert bubble(idle(flushed.timeline)).idle_share_of_step > 0.25


def test_a_tied_embedding_makes_pipedream_wait() -> None:
    """Both ends must have the gradient before either goes on, so the pipeline drains after all."""
    way = SMALL | {"schedule.name": "pipedream", "training.global_batch": 8}
    free, tied = (run(RECIPE, way | {"model.tied": tied}).summary for tied in (False, True))
    assert tied["step_time_s"] > 1.15 * free["step_time_s"]


def test_stashed_weights_are_held() -> None:
    """One version fewer on each rank further down; 2BW keeps one besides the newest everywhere."""
    way = SMALL | {"schedule.name": "pipedream"}
    for batch, stale in ((1, [3, 2, 1, 0]), (8, [1, 1, 1, 1])):
        result = run(RECIPE, way | {"training.global_batch": batch})
        for peak, more in zip(peaks(result.timeline), stale, strict=True):
            held = peak.by_category
            assert held.get("stashed_weights", 0.0) == more * held["weights"]
        assert result.summary["steps"]["staleness"] == {str(r): s for r, s in enumerate(stale)}
    names = set(result.timeline.graph.names)
    assert "stash_weights" not in names  # the update writes into the other buffer
    assert "grad_norm" not in names  # no rank waits for another's gradients


def test_steps_of_pipedream_suffice_for_a_steady_state() -> None:
    recipe = load(RECIPE, SMALL | {"schedule.name": "pipedream", "training.global_batch": 1})
    assert recipe.simulation.steps == 4 + 4 + 2 + 4  # filled, settled, shown, drained
    assert load(RECIPE, SMALL | {"schedule.name": "gpipe"}).simulation.steps == 1


def test_a_step_by_hand() -> None:
    """Steps of 5, 4 and 3 s; the first is left out, and what ends in no step has no length."""
    builder = Builder()
    for k, seconds in enumerate((5.0, 4.0, 3.0)):
        builder.add("a", 0, "compute", Fixed(seconds), step=k, microbatch=0)
    graph = builder.graph()
    timeline = simulate(graph, ideal(graph))
    assert ends(timeline).tolist() == [5.0, 9.0, 12.0]
    assert laps(timeline).tolist() == [5.0, 9.0, 12.0]
    found = steady(timeline)
    assert (found.seconds, found.steps) == (7.0, 2)
    assert (found.timeline.end - found.timeline.start).tolist() == [0.0, 4.0, 3.0]
    assert steady(timeline, lead=2, drain=2).steps == 1
    assert one(timeline).start.tolist() == [0.0, 0.0, 4.0]
    assert one(timeline).end.tolist() == [0.0, 4.0, 4.0]
    assert steady(timeline, lead=0).seconds == 12.0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"simulation.steps": 3}, "does not reach the steady state of pipedream; at least 4 would"),
        ({"training.global_batch": 2}, "global_batch = 2 makes 2 per pipeline, 1 or 4 would do"),
        ({"parallelism.zero": 1, "parallelism.overlap_param_gather": True},
         "needs a schedule with a flush"),
        ({"simulation.steps": 0}, "simulation.steps = 0 must be at least 1"),
        ({"simulation.steps": 1001}, "at most 1,000"),
        ({"simulation.steps": 1000, "training.global_batch": 800},
         "fewer simulation.steps than 1000"),
    ],
)  # fmt: skip
def test_what_cannot_run_on_and_on_is_one_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        load(RECIPE, SMALL | {"schedule.name": "pipedream"} | settings)


def test_updates_follow_each_other() -> None:
    """The ends of PipeDream's updates are in order, and evenly spaced once it has filled up."""
    way = SMALL | {"schedule.name": "pipedream", "training.global_batch": 1, "simulation.steps": 20}
    end = ends(run(RECIPE, way).timeline)
    gaps = [b - a for a, b in pairwise(end.tolist())]
    assert min(gaps) > 0
    middle = gaps[4:14]
    assert max(middle) == pytest.approx(min(middle), rel=0.01)


@pytest.mark.parametrize("zero", [0, 1])
def test_replicas_meet_at_every_update(zero: int) -> None:
    """Each update's gradients are reduced once, with replicas folded and not."""
    way = SMALL | DP | {"schedule.name": "pipedream", "parallelism.zero": zero}
    folded, whole = (
        run(RECIPE, way | {"simulation.fold": fold}).timeline for fold in ("auto", "none")
    )
    assert whole.seconds == pytest.approx(folded.seconds, rel=1e-9)
    graph = whole.graph
    dp = np.array([getattr(work, "dimension", "") == "dp" for work in graph.works])
    parts, members = np.unique(graph.part[dp[graph.part_work[graph.part]]], return_counts=True)
    assert len(parts) > 4 * int(graph.step.max())
    assert set(members.tolist()) == {2}
