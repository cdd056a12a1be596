"""Slow ranks and links, noise, pauses and uneven microbatches: against what must come of them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sim.engine import simulate
from sim.graph import PHASES, Communication, Compute
from sim.machine import cluster as clusters
from sim.perturbations.apply import perturbed
from sim.perturbations.links import slowed
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import Result, job_of, prepare, run
from sim.timeline import Timeline
from tests.recipes import NARROW as MODEL
from tests.recipes import tables


def recipe(*slow: dict[str, Any], gpus: int = 1, m: int = 3, **way: Any) -> dict[str, Any]:
    given = {key: way.pop(key) for key in ("steps", "fold", "seed", "host") if key in way}
    model = MODEL | way.pop("model", {})
    return tables(model, m * way.get("dp", 1), *slow, gpus=gpus, simulation=given, **way)


def simulated(*tables: dict[str, Any], **keys: Any) -> Result:
    return run(recipe_file.parse(recipe(*tables, **keys)))


def kernels(timeline: Timeline, rank: int = 0) -> np.ndarray:
    graph = timeline.graph
    compute = np.array([isinstance(work, Compute) for work in graph.works])
    return np.flatnonzero(compute[graph.work] & (graph.rank == rank))


def took(timeline: Timeline, ops: np.ndarray) -> np.ndarray:
    return timeline.end[ops] - timeline.start[ops]


def same(one: Timeline, two: Timeline) -> bool:
    return np.array_equal(one.start, two.start) and np.array_equal(one.end, two.end)


LATE = {"overlap_grad_reduce": False}  # nothing moves beside kernels


def test_one_slow_rank_slows_the_step_by_its_compute() -> None:
    """Four replicas without overlap: 0.3 of what the slow one computes, and not a bit more."""
    plain = simulated(gpus=4, dp=4, **LATE).timeline
    result = simulated({"rank": 2, "compute": 1.3}, gpus=4, dp=4, **LATE)
    slow = result.timeline
    assert result.summary["simulation"]["classes"] == 2
    assert set(plain.graph.ranks().tolist()) == {0}
    assert set(slow.graph.ranks().tolist()) == {0, 2}
    compute = took(plain, kernels(plain)).sum()
    assert slow.seconds == pytest.approx(plain.seconds + 0.3 * compute, rel=1e-9)
    assert took(slow, kernels(slow, 0)).sum() == pytest.approx(compute, rel=1e-9)


@pytest.mark.parametrize("slow", [0, 3])
@pytest.mark.parametrize("m", [4, 7])
def test_one_f_one_b_with_a_slow_stage(slow: int, m: int) -> None:
    """The slow stage never waits once it runs: ways in and out, and m times both its passes."""
    read = recipe_file.parse(
        recipe(
            {"rank": slow, "compute": 3.0},
            gpus=4,
            pp=4,
            m=m,
            p2p="direction",
            model={"tied": False},
        )
    )
    job, cluster = job_of(read), clusters.load("dgx_h100", 4)
    what = perturbed(read, job)
    _, graph, machine = prepare(job, cluster, kinds=what.kinds())
    quiet = replace(machine, sms=0 * machine.sms, hbm=0 * machine.hbm)
    timeline = simulate(graph, what.machine(graph, quiet))
    seconds = quiet.alone[graph.work]
    passes = np.zeros((4, 2))
    hop = 0.0
    for q in range(4):
        for k, phases in enumerate(("F", "IW")):
            mine = (graph.rank == q) & (graph.microbatch == 0) & (graph.stage == q)
            mine &= np.isin(graph.phase, [PHASES.index(p) for p in phases])
            mine &= np.isin(np.arange(len(graph)), kernels(timeline, q))
            passes[q, k] = seconds[mine].sum()
    for work in graph.works:
        if isinstance(work, Communication) and work.collective == "p2p":
            hop = float(quiet.alone[graph.works.index(work)])
    passes[slow] *= 3.0
    into = sum(passes[q, 0] + hop for q in range(slow))
    out = sum(passes[q, 1] + hop for q in range(slow))
    if slow == 3:
        expected = into + m * passes[3].sum() + out
    else:  # its first backward comes when all behind it have passed; p - 1 forwards come before
        behind = sum(passes[1:, 0]) + 3 * hop + sum(passes[1:, 1]) + 3 * hop
        first = passes[0, 0] + behind
        begin = max(first, 4 * passes[0, 0])
        expected = begin + m * passes[0, 1] + (m - 4) * passes[0, 0]
    last = np.isin(graph.phase, [PHASES.index("I"), PHASES.index("W")]) & (graph.rank == 0)
    before = timeline.start[np.flatnonzero(graph.phase == PHASES.index("F"))[0]]
    assert timeline.end[last].max() - before == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_only_the_axes_that_a_slow_rank_breaks_unfold() -> None:
    """And what is left folded is what all ranks simulated give."""
    way = {"gpus": 8, "tp": 2, "dp": 2, "pp": 2, "sp": True}
    last_replica = {"rank": [2, 3], "compute": 1.5}
    folded = simulated(last_replica, **way)
    whole = simulated(last_replica, fold="none", **way)
    assert folded.lanes.axes == ("tp",)
    assert simulated({"rank": [0, 2], "compute": 1.5}, **way).lanes.axes == ("dp",)
    assert simulated({"rank": [0, 1, 2, 3], "compute": 1.5}, **way).lanes.axes == ("tp", "dp")
    assert simulated({"compute": 1.5}, **way).lanes.axes == ("tp", "dp")
    assert simulated({"rank": 1, "noise": 0.1}, **way).lanes.axes == ()
    for rank in folded.timeline.graph.ranks().tolist():
        mine, theirs = (np.flatnonzero(of.timeline.graph.rank == rank) for of in (folded, whole))
        gap = np.abs(folded.timeline.end[mine] - whole.timeline.end[theirs]).max()
        assert gap <= 1e-9 * whole.timeline.seconds


def test_a_slow_gpu_shares_as_any_other() -> None:
    """Twice as slow everywhere, communication apart: kernels beside collectives take twice, too."""
    way = {"gpus": 4, "dp": 4, "bucket_mb": 1.0}
    plain, slow = simulated(**way), simulated({"compute": 2.0}, **way)
    beside = plain.timeline
    alone = plain.machine.alone[beside.graph.work]
    ops = kernels(beside)
    assert (took(beside, ops) > 1.01 * alone[ops]).any()  # else nothing would be shared
    ratio = took(slow.timeline, ops) / alone[ops]
    assert ratio.min() == pytest.approx(2.0)
    assert ratio.max() > 2.01


def test_nothing_changes_without_a_perturbation() -> None:
    """A factor of 1 is the very same timeline, to the bit."""
    way = {"gpus": 4, "dp": 2, "pp": 2}
    plain = simulated(**way)
    assert plain.machine.factor is None
    assert same(plain.timeline, simulated({"compute": 1.0}, **way).timeline)
    assert same(plain.timeline, simulated({"stall": "0 s"}, **way).timeline)


def test_noise_has_the_mean_and_spread_that_it_says() -> None:
    """Of the logarithms of 0.2; kernels of another seed and another rank take other times."""
    plain = simulated(m=20).timeline
    noisy = simulated({"noise": 0.2}, m=20).timeline
    ops = kernels(plain)
    ratio = took(noisy, ops) / took(plain, ops)
    n = len(ops)
    assert n > 1500
    assert np.log(ratio).std() == pytest.approx(0.2, abs=3 * 0.2 / np.sqrt(2 * n))
    assert ratio.mean() == pytest.approx(1.0, abs=3 * 0.204 / np.sqrt(n))
    assert same(noisy, simulated({"noise": 0.2}, m=20).timeline)
    assert not same(noisy, simulated({"noise": 0.2}, m=20, seed=1).timeline)
    way = {"gpus": 2, "dp": 2, "m": 20, "overlap_grad_reduce": False}
    alone, two = simulated(**way).timeline, simulated({"noise": 0.2}, **way).timeline
    of = took(alone, kernels(alone))
    logs = [np.log(took(two, kernels(two, rank)) / of) for rank in (0, 1)]
    assert abs(np.corrcoef(*logs)[0, 1]) < 3 / np.sqrt(len(of))


def test_noise_from_a_recording() -> None:
    """Each factor is one of those given, each as often."""
    plain = simulated(m=20).timeline
    noisy = simulated({"noise": [0.9, 1.0, 1.6]}, m=20).timeline
    ratio = took(noisy, kernels(plain)) / took(plain, kernels(plain))
    for factor in (0.9, 1.0, 1.6):
        share = np.isclose(ratio, factor).mean()
        assert share == pytest.approx(1 / 3, abs=3 * np.sqrt(2 / 9 / len(ratio)))


def test_noise_does_not_depend_on_what_is_simulated() -> None:
    """Rank 1 of two pipelines has the same noise, folded over tp or not."""
    way = {"gpus": 4, "tp": 2, "dp": 2, "sp": True}
    noise = {"rank": [2, 3], "noise": 0.3}
    one, all_four = simulated(noise, **way).timeline, simulated(noise, fold="none", **way).timeline
    assert same(one, all_four)


@pytest.mark.parametrize("host", [False, True])
def test_a_pause_on_the_critical_path_is_added(host: bool) -> None:
    """Of one GPU at the beginning of a step, or at a time; the CPU's by what it is ahead less."""
    plain = simulated(m=2, steps=2, host=host).timeline
    half = float(plain.seconds) / 2
    for when in ({}, {"step": 1}, {"at": f"{half * 1e3} ms"}):
        paused = simulated({"stall": "50 ms"} | when, m=2, steps=2, host=host).timeline
        added = paused.seconds - plain.seconds
        assert added == pytest.approx(0.05, rel=1e-9) if not host else 0.04 < added <= 0.05 + 1e-9
    begun = paused.start[kernels(paused)]
    assert not np.any((begun > half + 1e-3) & (begun < half + 0.04))


def test_a_pause_where_there_is_time_costs_nothing() -> None:
    """The second stage waits for its first input anyway; a stream may pause that nobody needs."""
    way = {"gpus": 2, "pp": 2, "m": 4, "model": {"tied": False}}
    plain = simulated(**way).timeline
    waits = plain.start[kernels(plain, 1)[1]]  # behind the kernel that zeroes gradients
    assert waits > 5e-5
    at = {"rank": 1, "at": "0 s", "stream": "compute"}
    short = simulated({"stall": f"{0.8 * waits * 1e6} us"} | at, **way).timeline
    assert short.seconds == pytest.approx(plain.seconds, rel=1e-12)
    long = simulated({"stall": f"{3 * waits * 1e6} us"} | at, **way).timeline
    late = plain.end[kernels(plain, 1)[0]] + 2 * waits
    assert long.seconds == pytest.approx(plain.seconds + late, rel=1e-6)


def test_a_pause_begins_when_it_says() -> None:
    """While the second stage waits for its first input: it goes on a pause later."""
    way = {"gpus": 2, "pp": 2, "m": 4, "model": {"tied": False}}
    plain = simulated(**way).timeline
    waits = plain.start[kernels(plain, 1)[1]]  # behind the kernel that zeroes gradients
    assert waits > 5e-5
    at = {"rank": 1, "at": f"{0.5 * waits * 1e6} us", "stall": f"{waits * 1e6} us"}
    paused = simulated(at, **way).timeline
    assert paused.start[kernels(paused, 1)[1]] == pytest.approx(1.5 * waits, rel=1e-9)


def test_all_ranks_that_pause_alike_stay_folded() -> None:
    """A checkpoint."""
    result = simulated({"stall": "1 s"}, gpus=8, dp=8)
    assert result.lanes.axes == ("dp",)
    assert result.timeline.seconds == pytest.approx(
        1 + simulated(gpus=8, dp=8).timeline.seconds, rel=1e-9
    )


def test_lengths_scale_kernels_and_attention_by_the_square() -> None:
    """One GPU: its fixed time apart, each kernel of a microbatch; communication has none."""
    lengths = (0.5, 1.0, 2.0)
    plain, uneven = simulated(), simulated({"lengths": list(lengths)})
    graph, machine = plain.timeline.graph, plain.machine
    expected = plain.timeline.seconds
    for i in kernels(plain.timeline).tolist():
        op = graph.op(i)
        if op.microbatch < 0 or op.phase == "O":
            continue
        power = 2 if op.work.kind.startswith("attention") else 1
        work = float(machine.alone[graph.work[i]] - machine.fixed[graph.work[i]])
        expected += work * (lengths[op.microbatch] ** power - 1)
    assert uneven.timeline.seconds == pytest.approx(expected, rel=1e-9)


def test_lengths_go_on_in_the_next_step() -> None:
    """Six samples of two steps have four lengths in turn."""
    lengths = (1.0, 2.0, 3.0, 4.0)
    plain = simulated(steps=2).timeline
    uneven = simulated({"lengths": list(lengths)}, steps=2).timeline
    graph = plain.graph
    name = np.array(graph.names)[graph.name]
    ops = np.flatnonzero((name == "qkv_wgrad") | (name == "fc1"))
    sample = graph.step[ops] * 3 + graph.microbatch[ops]
    assert set(sample.tolist()) == set(range(6))
    for k in range(6):
        ratio = took(uneven, ops[sample == k]) / took(plain, ops[sample == k])
        assert (ratio.min() == pytest.approx(1.0)) == (lengths[k % 4] == 1.0)
    first, again = (took(uneven, ops[sample == k]) for k in (1, 5))
    assert first == pytest.approx(again)


def test_lengths_go_round_the_replicas_as_samples_do() -> None:
    """Microbatch k of replica d is sample k x dp + d; two kinds of replicas are two."""
    way = {"gpus": 4, "dp": 2, "tp": 2, "sp": True, "m": 2, **LATE}
    result = simulated({"lengths": [1.0, 1.5]}, **way)
    assert result.lanes.axes == ("tp",)
    plain = simulated(**way).timeline
    second = took(result.timeline, kernels(result.timeline, 2))
    assert took(result.timeline, kernels(result.timeline)) == pytest.approx(
        took(plain, kernels(plain))
    )
    assert second.sum() > 1.2 * took(plain, kernels(plain)).sum() * 0.9
    drawn = simulated({"lengths": 0.4}, **way)
    assert same(drawn.timeline, simulated({"lengths": 0.4}, **way).timeline)
    assert drawn.lanes.axes == ("tp",)


def test_a_slow_link_slows_what_crosses_it() -> None:
    """Bytes take twice as long, latencies stay, and the rest of the cluster is what it was."""
    way = {"gpus": 32, "dp": 16, "tp": 2, "sp": True, **LATE}
    plain = simulated(**way)
    slow = simulated({"link": "ib", "bandwidth": 0.5}, **way)
    assert slow.lanes.axes == plain.lanes.axes
    assert slow.machine.latency == pytest.approx(plain.machine.latency)
    across = [getattr(work, "dimension", "") == "dp" for work in plain.timeline.graph.works]
    inside = [getattr(work, "dimension", "") == "tp" for work in plain.timeline.graph.works]
    ratio = slow.machine.transfer / np.where(plain.machine.transfer, plain.machine.transfer, 1)
    big = np.array(across) & (plain.machine.size > 1e6)
    assert big.any()
    assert ratio[big] == pytest.approx(2.0)
    assert ratio[inside] == pytest.approx(1.0)


def test_one_slow_cable_slows_its_own() -> None:
    """Messages of a pipeline over NVLink: those to and from rank 1 alone."""
    read = recipe_file.parse(recipe(gpus=4, pp=4, m=4))
    table = {"rank": 1, "link": "nvlink", "bandwidth": 0.25}
    tables = recipe_file.parse(recipe(table, gpus=4, pp=4, m=4)).perturbations
    cluster = clusters.load("dgx_h100", 4)
    machines = [prepare(job_of(read), of)[1:] for of in (cluster, slowed(cluster, tables))]
    (graph, plain), (_, slow) = machines
    for k, work in enumerate(graph.works):
        if isinstance(work, Communication) and work.collective == "p2p":
            times = 4.0 if 1 in work.ranks else 1.0
            assert slow.transfer[k] == pytest.approx(times * plain.transfer[k])
    named = simulated({"link": "gpu 1 - NVSwitch 0", "bandwidth": 0.25}, gpus=4, pp=4, m=4)
    assert named.machine.transfer == pytest.approx(slow.transfer)


def test_one_slow_cable_unfolds_its_axis() -> None:
    """All replicas wait for the one behind it."""
    way = {"gpus": 16, "dp": 16, **LATE}
    plain, slow = simulated(**way), simulated({"rank": 9, "link": "ib", "bandwidth": 0.1}, **way)
    assert plain.lanes.axes == ("dp",)
    assert slow.timeline.seconds > plain.timeline.seconds
    whole = simulated({"rank": 9, "link": "ib", "bandwidth": 0.1}, fold="none", **way)
    assert slow.timeline.seconds == pytest.approx(whole.timeline.seconds, rel=1e-9)


def test_perturbations_are_written_out_and_read_again() -> None:
    tables = [{"rank": [1, 2], "compute": 1.3}, {"lengths": [1.0, 2.0]}, {"stall": "5 ms"}]
    read = recipe_file.parse(recipe(*tables, gpus=4, dp=4))
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(read))) == read


REFUSED = [
    ({"rank": 3},
     "has nothing of compute, noise, lengths, gpu_spread, bandwidth, stall; it must have"),
    ({"compute": 1.3, "noise": 0.1}, "perturbations[0] has compute and noise of compute, noise"),
    ({"compute": 0.0}, "perturbations[0].compute = 0.0 must be greater than 0"),
    ({"compute": "fast"}, 'perturbations[0].compute = "fast" must be a number'),
    ({"computer": 2.0}, "unknown key perturbations[0].computer; did you mean compute?"),
    ({"rank": 4, "compute": 1.3}, "perturbations[0].rank = 4 is not among the 4 ranks of the job"),
    ({"rank": -1, "compute": 1.3}, "perturbations[0].rank = -1 must be"),
    ({"compute": 1.3, "step": 0}, "perturbations[0].step goes with stall, not with compute"),
    ({"bandwidth": 0.5}, "perturbations[0].link is missing; bandwidth needs it"),
    ({"bandwidth": 0.5, "link": "wifi"}, "no link 'wifi'; dgx_h100 has gpu - nvswitch, nvlink"),
    ({"lengths": 0.5, "rank": 1}, "perturbations[0].rank does not go with lengths"),
    ({"bandwidth": 0.5, "link": ""}, "perturbations[0].link is empty; give it, or leave it out"),
    ({"noise": [1.0, -1.0]}, "must be a number or a list of numbers above 0"),
    ({"stall": "50"}, "perturbations[0].stall: '50' is not a number of s, such as '50 ms'"),
    ({"stall": "5 ms", "at": "soon"}, "perturbations[0].at: 'soon' is not a number of s"),
    ({"stall": "5 ms", "at": "9 s"}, "perturbations[0].at = 9 s is after the last op of rank 0"),
    ({"stall": "5 ms", "at": "1 s", "step": 0}, "perturbations[0] has both step and at; leave one"),
    ({"stall": "5 ms", "step": 1}, "perturbations[0].step = 1 is not among the 1 steps"),
    ({"stall": "5 ms", "stream": "gpu"}, "perturbations[0].stream = 'gpu' is not a stream of"),
    ({"noise": []}, "perturbations[0].noise = [] must be"),
    ({"gpu_spread": [1e7]}, "must be a number or a list of numbers above 0 and at most 1e6"),
    ({"gpu_spread": 1.5}, "perturbations[0].gpu_spread = 1.5 must be at most 1"),
    ({"noise": 0.1, "seed": 1}, "perturbations[0].seed goes with gpu_spread, not with noise"),
]  # fmt: skip


@pytest.mark.parametrize(("table", "sentence"), REFUSED)
def test_a_refusal_is_one_sentence(table: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        simulated(table, gpus=4, dp=4)
    assert sentence in str(error.value)


def test_check_knows_the_links_that_there_are() -> None:
    with pytest.raises(ValueError, match="no link 'wifi'; dgx_h100 has gpu - nvswitch, nvlink"):
        check(recipe_file.parse(recipe({"bandwidth": 0.5, "link": "wifi"}, gpus=4, dp=4)))


def test_too_many_noisy_ranks_are_refused() -> None:
    way = {"gpus": 8192, "tp": 8, "sp": True, "pp": 4, "dp": 256, "m": 64}
    with pytest.raises(ValueError, match="perturbations make 8,192 ranks differ, whose"):
        simulated({"noise": 0.1}, **way)


def test_every_way_to_fold_is_refused_if_too_many_ranks_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the proof of the first way fails, the next is not built before it is counted."""
    job = job_of(recipe_file.parse(recipe({"noise": 0.1}, gpus=4, dp=4)))
    kinds = np.array([0, 1, 1, 1])
    (_, first, _), (_, whole, _) = (
        prepare(job, clusters.load("dgx_h100", 4), fold, kinds=kinds) for fold in (True, False)
    )
    monkeypatch.setattr("sim.runs.run.MOST_UNLIKE", (len(first) + len(whole)) // 2)
    assert prepare(job, clusters.load("dgx_h100", 4), kinds=kinds)
    monkeypatch.setattr("sim.runs.run.loads", lambda *_: None)
    with pytest.raises(ValueError, match="make 4 ranks differ"):
        prepare(job, clusters.load("dgx_h100", 4), kinds=kinds)
