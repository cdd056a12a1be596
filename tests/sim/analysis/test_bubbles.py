"""Intervals of idling: closed forms, sums to the nanosecond, and who was waited for."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import pytest

import schedules
from sim.analysis.breakdown import breakdown
from sim.analysis.bubbles import bubbles, by_peer, normalised
from sim.analysis.idle import CAUSES, idle
from sim.builder.strategies.exchange import Policy
from sim.engine import simulate
from sim.graph import Builder, Communication, Fixed
from sim.machine import cluster
from sim.machine.hardware import ideal
from sim.recipe import recipe_file
from sim.runs.run import prepare, run
from sim.runs.schedule_run import legal_timeline, plan_of
from sim.timeline import Timeline
from tests.recipes import DEEP as MODEL

F, I, W = 5.0, 4.0, 3.0  # noqa: E741


def of_schedule(name: str, ranks: int = 4, microbatches: int = 8) -> Timeline:
    chunks = schedules.stages_per_rank(name) or 1
    plan = plan_of(name, ranks, microbatches, chunks if "chunks" in schedules.options(name) else 1)
    return legal_timeline(plan, {"F": F, "I": I, "W": W}, Policy("direction"), "serial")


@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b"])
def test_gpipe_and_1f1b_give_the_closed_form(name):
    """(p - 1)(F + B) on every rank: (p - 1) / m of the ideal time (Narayanan 2021, section 2.2).

    Rank r waits r F to warm up, r B to drain, and the rest on others in between.
    """
    timeline = of_schedule(name)
    of = bubbles(timeline)
    per = normalised(timeline, of)
    assert per["idle_s"].tolist() == [3 * (F + I + W)] * 4
    assert per["idle_over_ideal"].tolist() == pytest.approx([3 / 8] * 4)
    assert per["idle_share_of_step"].tolist() == pytest.approx([3 / 11] * 4)
    seconds = of.groupby(["rank", "cause"], observed=True)["seconds"].sum()
    for rank in range(4):
        assert seconds.get((rank, "warm_up"), 0.0) == rank * F
        assert seconds.get((rank, "drain"), 0.0) == rank * (I + W)
    between = of[of["cause"].isin(["dependency", "waiting"])]
    assert (between["peer"] >= 0).all()
    assert (between["peer"] == between["rank"] + 1).all()  # a backward comes from the next rank


@pytest.mark.parametrize("name", [n for n in schedules.names() if n not in ("pipedream",)])
def test_causes_of_every_schedule_sum_to_its_idling(name):
    """In whole nanoseconds and rank by rank, against what the breakdown calls computing."""
    sums(of_schedule(name))


STRATEGIES = {
    "tp": {"tp": 2, "sp": True},
    "pp": {"pp": 4},
    "dp": {"dp": 4},
    "all": {"tp": 2, "pp": 2, "dp": 2},
    "interleaved": {"pp": 2, "chunks": 2},
    "zero 3": {"dp": 4, "zero": 3},
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_causes_of_every_strategy_sum_to_its_idling(name, small_job):
    sizes = STRATEGIES[name]
    job = small_job(**sizes)
    gpus = sizes.get("tp", 1) * sizes.get("pp", 1) * sizes.get("dp", 1)
    _, graph, machine = prepare(job, cluster.load("dgx_a100", gpus), fold=False)
    sums(simulate(graph, machine))


EXPERTS = {"experts": 4, "topk": 1, "expert_ffn": 256}
RECIPES = {
    "pipedream": {"parallelism": {"pp": 4}, "schedule": {"name": "pipedream"}},
    "dualpipe": {"parallelism": {"pp": 4}, "schedule": {"name": "dualpipe"}},
    "fused pairs": {"parallelism": {"pp": 4}, "schedule": {"name": "dualpipe_v", "pair": "fused"}},
    "batched": {"parallelism": {"pp": 4, "p2p": "batched"}},
    "ring attention": {"parallelism": {"cp": 4}},
    "ulysses": {"parallelism": {"cp": 2, "cp_kind": "ulysses", "dp": 2}},
    "experts": {"parallelism": {"dp": 4, "ep": 4}, "model": EXPERTS},
    "uneven experts": {"parallelism": {"dp": 4, "ep": 4},
        "model": {**EXPERTS, "load": {"kind": "zipf", "s": 1.2}}},
    "fsdp1": {"parallelism": {"fsdp": {"kind": "fsdp1"}}},
    "fsdp2": {"parallelism": {"fsdp": {"kind": "fsdp2", "shard": 2}}},
    "yafsdp": {"parallelism": {"fsdp": {"kind": "yafsdp"}}},
    "zero 3": {"parallelism": {"zero": 3, "pp": 2}},
    "offload": {"parallelism": {"pp": 2}, "training": {"offload": "activations"}},
    "optimizer": {"training": {"offload": {"optimizer": 0.5, "overlap": True}}},
    "host": {"parallelism": {"tp": 2}, "simulation": {"host": True}},
    "several steps": {"parallelism": {"pp": 2}, "simulation": {"steps": 3}},
    "slow rank": {
        "parallelism": {"pp": 4, "p2p": "direction"},
        "perturbations": [{"rank": 2, "compute": 1.5}],
    },
    "noise": {"parallelism": {"tp": 2}, "perturbations": [{"noise": 0.2}]},
    "stall": {"parallelism": {"dp": 4}, "perturbations": [{"rank": 1, "stall": "1 ms"}]},
    "slow link": {"perturbations": [{"rank": 1, "link": "nvlink", "bandwidth": 0.2}],
        "parallelism": {"tp": 2}},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_causes_of_every_recipe_sum_to_its_idling(name):
    own = RECIPES[name]
    parallelism = own.get("parallelism", {})
    split = prod(parallelism.get(key, 1) for key in ("tp", "pp", "cp"))
    data = {
        **own,
        "model": MODEL | own.get("model", {}),
        "cluster": {"topology": "dgx_h100", "gpus": 4},
        "training": {"global_batch": 8 * 4 // split, **own.get("training", {})},
    }
    if name == "pipedream":
        data["training"]["global_batch"] = 1
    sums(run(recipe_file.parse(data)).timeline)


def sums(timeline: Timeline) -> None:
    of, shares = bubbles(timeline), breakdown(timeline)
    assert (of["seconds"] > 0).all()
    for row, rank in enumerate(shares.ranks):
        mine = of[of["rank"] == rank]
        idle = timeline.seconds - shares.compute[row]
        by_cause = mine.groupby("cause", observed=True)["seconds"].sum()
        assert abs(by_cause.sum() - idle) < 1e-9
        assert (mine["start"].to_numpy()[1:] >= mine["end"].to_numpy()[:-1]).all()
    moved = of[~of["cause"].isin(CAUSES)]
    assert (moved["op"] >= 0).all()
    assert (timeline.graph.rank[moved["op"]] == moved["rank"]).all()
    waits = of[of["cause"] == "waiting"]
    assert (waits["peer"] != waits["rank"]).all()
    assert (timeline.start[waits["op"]] == waits["end"]).all()


def test_who_is_waited_for_worked_by_hand():
    """Rank 1 computes 0-2, waits for rank 0's 0-5 until 5, computes 5-9 and reduces with rank 2,
    who comes at 12, until 14; a kernel 14-15, a lag of 1 s, and another 16-17."""
    b = Builder()
    reduce = Communication("all_reduce", 8.0, (1, 2), "dp")
    first = b.add("a", 0, "compute", Fixed(5.0))
    b.add("b", 1, "compute", Fixed(2.0))
    c = b.add("c", 1, "compute", Fixed(4.0), [first])
    late = b.add("late", 2, "compute", Fixed(12.0))
    members = [b.add("reduce", 1, "dp", reduce, [c]), b.add("reduce", 2, "dp", reduce, [late])]
    b.join(members)
    last = b.add("last", 1, "compute", Fixed(1.0), members[:1])
    b.add("lagging", 1, "compute", Fixed(1.0), lag=1.0)
    graph = b.graph()
    of = bubbles(simulate(graph, ideal(graph, p2p=2.0)))
    mine = of[of["rank"] == 1]
    rows = mine[["start", "end", "cause", "op", "peer"]].itertuples(index=False, name=None)
    assert list(rows) == [
        (2.0, 5.0, "dependency", first, 0),
        (9.0, 12.0, "waiting", members[1], 2),
        (12.0, 14.0, "exposed_dp", members[0], 1),
        (15.0, 16.0, "lag", last, 1),
    ]
    assert by_peer(of).loc[1, 2] == 3.0
    end = of[of["rank"] == 0]
    assert end[["start", "end", "cause", "peer"]].to_numpy().tolist() == [[5.0, 17.0, "drain", -1]]


def test_a_transfer_that_takes_no_time_leads_to_who_sent_it():
    """Rank 1 waits from 2 s on for rank 0's kernel 0-5, by way of a receive at 5 s."""
    b = Builder()
    first = b.add("a", 0, "compute", Fixed(5.0))
    b.add("b", 1, "compute", Fixed(2.0))
    recv = b.add("recv", 1, "pp", Fixed(0.0, "communication", "pp"), [first])
    b.add("c", 1, "compute", Fixed(4.0), [recv])
    graph = b.graph()
    of = bubbles(simulate(graph, ideal(graph)))
    rows = of[["rank", "cause", "op", "peer"]][of["cause"] == "dependency"]
    assert rows.to_numpy().tolist() == [[1, "dependency", first, 0]]


def test_a_launch_is_the_host_op_that_was_waited_for():
    b = Builder()
    b.add("kernel", 0, "compute", Fixed(1.0))
    call = b.add("launch", 0, "host", Fixed(3.0, "host"))
    b.add("kernel", 0, "compute", Fixed(2.0), [call])
    graph = b.graph()
    of = bubbles(simulate(graph, ideal(graph)))
    rows = of[["start", "end", "cause", "op"]].itertuples(index=False, name=None)
    assert list(rows) == [(1.0, 3.0, "launch", call)]


def test_a_gap_behind_a_collective_is_a_lag_and_nobodys_fault():
    """Rank 0 reduces with rank 1, who comes at 5 s, until 7 s; its kernel lags 2 s behind that."""
    b = Builder()
    reduce = Communication("all_reduce", 8.0, (0, 1), "dp")
    b.add("a", 0, "compute", Fixed(1.0))
    late = b.add("late", 1, "compute", Fixed(5.0))
    members = [b.add("reduce", 0, "dp", reduce), b.add("reduce", 1, "dp", reduce, [late])]
    b.join(members)
    last = b.add("last", 0, "compute", Fixed(1.0))
    b.wait(last, members[0], 2.0)
    graph = b.graph()
    of = bubbles(simulate(graph, ideal(graph, p2p=2.0)))
    rows = of[of["rank"] == 0][["start", "end", "cause", "op", "peer"]]
    assert list(rows.itertuples(index=False, name=None)) == [
        (1.0, 5.0, "waiting", members[1], 1),
        (5.0, 7.0, "exposed_dp", members[0], 0),
        (7.0, 9.0, "lag", members[0], 0),
    ]


def test_nothing_at_all():
    empty = Timeline(Builder().graph(), np.empty(0), np.empty(0))
    assert len(bubbles(empty)) == 0


def test_waiting_for_a_straggler_is_no_drain() -> None:
    """Data parallel, F = 5, a slow rank 7: the other waits 2 inside the all-reduce of 4, and in the
    end 1 for the slow one's optimizer, with nothing left of its own."""
    b = Builder()
    members = []
    for rank, (forward, update) in enumerate(((5.0, 3.0), (7.0, 4.0))):
        first = b.add("F", rank, "compute", Fixed(forward), microbatch=0)
        members.append(b.add("reduce", rank, "dp", Fixed(0.0, "communication", "dp"), [first]))
        b.add("adam", rank, "compute", Fixed(update), members[-1:])
    b.join(members, Fixed(4.0, "communication", "dp"))
    causes = idle(simulate(graph := b.graph(), ideal(graph))).by_cause()
    assert {name: seconds.tolist() for name, seconds in causes.items()} == {
        "waiting": [2.0, 0.0], "exposed_dp": [4.0, 4.0], "drain": [1.0, 0.0],
    }  # fmt: skip


def test_a_gather_that_a_slow_rank_holds_up_is_no_warm_up() -> None:
    """FSDP's first gather begins when the slow rank has cast its weights, 3 s after the other."""
    b = Builder()
    casts = [b.add("cast", rank, "copy", Fixed(s, "host")) for rank, s in enumerate((1.0, 4.0))]
    gathers = [
        b.add("gather", rank, "shard", Fixed(0.0, "communication", "shard"), [cast])
        for rank, cast in enumerate(casts)
    ]
    for rank in range(2):
        b.add("F", rank, "compute", Fixed(5.0), gathers[rank : rank + 1], microbatch=0)
    b.join(gathers, Fixed(2.0, "communication", "shard"))
    causes = idle(simulate(graph := b.graph(), ideal(graph))).by_cause()
    assert causes["waiting"].tolist() == [3.0, 0.0]
    assert causes["warm_up"].tolist() == [1.0, 4.0]
    assert causes["exposed_shard"].tolist() == [2.0, 2.0]


@pytest.mark.slow
def test_fifteen_ranks_wait_in_an_all_reduce_for_a_slow_one(shared: Path, tmp_path: Path) -> None:
    """GPT 1.5B, DP 16: idle time stays; only the slow optimizer is drained for.

    15 ranks see every all-reduce move, the slow one only the last, as all do where none is slow.
    """
    case = shared.parent / "cases/reports/17-dp-straggler-drain/recipe.toml"
    causes = run(case).summary["bubble"]["by_cause_s"]
    (even := tmp_path / "even.toml").write_text(case.read_text().split("[[perturbations]]")[0])
    time = run(even).summary["time_s"]
    last, hidden = (time[kind]["dp"]["mean"] for kind in ("exposed", "hidden"))
    assert 0.2 < sum(causes.values()) < 0.3
    assert causes["exposed_dp"] == pytest.approx(last + hidden * 15 / 16, rel=1e-9)
    assert causes["drain"] < 0.012 < 0.14 < causes["waiting"]
