"""Stragglers in recordings: against the same recipe without what was put wrong, simulated."""

from __future__ import annotations

import gzip
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.alike import places, usual
from sim.engine import simulate
from sim.graph import Builder, Fixed, Graph, owners
from sim.machine.hardware import ideal
from sim.recipe import recipe_file
from sim.runs.run import Result, run
from sim.timeline import Timeline
from sim.whatif import edited
from tests.recipes import ran
from traces.hta import files as hta
from traces.own import perfetto
from traces.own.priced_machine import PricedMachine
from traces.reading import read
from traces.recording import Recording
from traces.replay import level, replays
from traces.replay.slowdown import slowdown

MODEL = {
    "layers": 2, "hidden": 2048, "heads": 16, "vocab": 4096, "sequence": 1024,
    "attention": "flash", "dropout": 0.0,
}  # fmt: skip
EXPERTS = {"experts": 8, "topk": 2, "expert_ffn": 2048}
PIPELINE = {"name": "one_f_one_b"}


def simulated(*slow: dict[str, Any], gpus: int = 8, batch: int = 16, **way: Any) -> Any:
    """A run with these perturbations, and how much longer it takes than without: the truth."""
    model, fold = MODEL | way.pop("model", {}), {"fold": "none", **way.pop("simulation", {})}
    late, healthy = (ran(model, batch, *of, gpus=gpus, simulation=fold, **way) for of in (slow, ()))
    return late, late.timeline.seconds / healthy.timeline.seconds


def own_file(of: Result, folder: Path) -> Path:
    path = folder / "timeline.json.gz"
    healthy = (of.cluster.healthy or of.cluster).capacity
    perfetto.write(of.timeline, path, of=PricedMachine(of.machine, healthy))
    return path


def profiler_files(of: Result, folder: Path) -> Path:
    """The files that ``run --out`` writes."""
    traces = folder / "traces"
    traces.mkdir(exist_ok=True)
    hta.write_rank_files(of.timeline, traces, machine=of.machine)
    return traces


def without_calls(folder: Path) -> Path:
    """The same files, now without event calls."""
    for path in folder.glob("rank*"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        gone = ("cudaEventRecord", "cudaStreamWaitEvent")
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e["name"] not in gone]
        path.write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return folder


def slow(rank: int, factor: float = 1.3) -> dict[str, Any]:
    return {"rank": rank, "compute": factor}


QUICK = {
    "fsdp, two slow": ((slow(2, 1.2), slow(6, 1.4)), {"fsdp": {"kind": "fsdp2"}}),
    "ddp, a pause": (({"rank": 5, "stall": "10 ms"},), {"overlap_grad_reduce": True}),
    "1f1b": ((slow(2),), {"gpus": 4, "pp": 2, "schedule": PIPELINE, "batch": 8}),
}
LONG = {
    "tp": ((slow(5),), {"tp": 4, "sp": True, "dp": 2, "batch": 4}),
    "ddp": ((slow(3),), {"overlap_grad_reduce": True}),
    "hsdp": ((slow(6),), {"fsdp": {"kind": "fsdp2", "shard": 4}}),
    "a slow link": (
        ({"rank": 3, "link": "nvlink", "bandwidth": 0.2},), {"tp": 2, "sp": True, "batch": 8},
    ),
    "1f1b, batched, two slow": (
        (slow(0, 1.2), slow(7)), {"pp": 4, "p2p": "batched", "schedule": PIPELINE, "batch": 8,
        "model": {"layers": 4}},
    ),
    "interleaved": (
        (slow(5),), {"pp": 2, "schedule": {"name": "interleaved_1f1b", "chunks": 2},
        "model": {"layers": 4}},
    ),
    "1f1b and tp": ((slow(5),), {"pp": 2, "tp": 2, "sp": True, "schedule": PIPELINE, "batch": 8}),
    "experts": ((slow(5),), {"ep": 4, "model": EXPERTS}),
    "1f1b, a pause": (
        ({"rank": 5, "stall": "5 ms"},), {"pp": 4, "p2p": "direction", "schedule": PIPELINE,
        "model": {"layers": 4}},
    ),
    "a host that pauses": (
        ({"rank": 5, "stall": "10 ms"},), {"overlap_grad_reduce": True,
        "simulation": {"host": True}},
    ),
}  # fmt: skip


def held_to_the_truth(name: str, folder: Path, tables: Any, keys: dict[str, Any]) -> None:
    result, truth = simulated(*tables, **keys)
    assert truth > 1.02
    own = slowdown(read([own_file(result, folder)]))
    assert (own["slowdown"], own["method"]) == (pytest.approx(truth, rel=1e-3), "simulated again")
    traces = profiler_files(result, folder)
    told = slowdown(read([traces]))
    assert (told["slowdown"], told["method"]) == (pytest.approx(truth, rel=0.02), "equal ranks")
    sort = "host" if "pause" in name else "transfers" if "link" in name else "kernels"
    for found in (own, told):
        assert next(iter(found["by_kind"])) == sort
        assert found["by_kind"][sort] == pytest.approx(truth, rel=0.02)
    recording = read([without_calls(traces)])
    assert any("no event calls" in sentence for sentence in recording.warnings)
    assert slowdown(recording)["slowdown"] == pytest.approx(truth, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_slowdown_is_the_true_one(name: str, tmp_path: Path) -> None:
    held_to_the_truth(name, tmp_path, *QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_slowdown_is_the_true_one_in_larger_steps(name: str, tmp_path: Path) -> None:
    held_to_the_truth(name, tmp_path, *LONG[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["straggle", "st_ddp", "st_pp"])
def test_run_and_analyze_say_one_number(
    name: str, shared: Path, tmp_path: Path, traincast: Callable[..., tuple[int, str, str]]
) -> None:
    recipe = shared.parent / "cases/stragglers" / f"{name}.toml"
    given = ("simulation.clock=boost", "simulation.fold=none", "model.layers=4")
    sets = [part for one in given for part in ("--set", one)]
    line = ("run", recipe, *sets, "--ranks", "0-7", "--stragglers", "--out", tmp_path, "--json")
    ran = json.loads(traincast(*line)[1])
    truth = ran["stragglers"]["slowdown"]
    healthy = tomllib.loads(recipe.read_text())
    del healthy["perturbations"]
    healthy["model"]["layers"] = 4
    healthy["simulation"] = {**healthy.get("simulation", {}), "clock": "boost"}
    assert truth == pytest.approx(
        ran["step_time_s"] / run(recipe_file.parse(healthy)).summary["step_time_s"], 1e-6
    )
    for path, off in ((tmp_path / "timeline.json.gz", 1e-9), (tmp_path / "traces", 0.01)):
        found = json.loads(traincast("analyze", path, "--json")[1])["stragglers"]
        assert found["slowdown"] == pytest.approx(truth, rel=off)
        line = ("replay", path, "--what-if", "remove stragglers", "--json")
        replayed = json.loads(traincast(*line)[1])
        after = replayed["what_if"][0]["step_s"]
        assert replayed["replayed_step_s"] / after == pytest.approx(truth, rel=max(off, 1e-6))


@pytest.mark.slow
def test_a_healthy_pipeline_has_no_stragglers(tmp_path: Path) -> None:
    """Exactly, in every form: whole microseconds and stages of unlike work are nobody's fault."""
    result, _ = simulated(gpus=4, pp=2, schedule=PIPELINE, batch=8)
    assert slowdown(read([own_file(result, tmp_path)]))["slowdown"] == 1.0
    traces = profiler_files(result, tmp_path)
    for change in (Path, without_calls):
        recording = read([change(traces)])
        assert slowdown(recording)["slowdown"] == 1.0
        step = replays.replay(recording, "none", what_if="remove stragglers").steps()[1]
        assert step.tolist() == replays.replay(recording, "none").steps()[1].tolist()


@pytest.mark.slow
def test_one_kind_of_kernel_may_be_slow_on_one_rank(tmp_path: Path) -> None:
    """Matrix products of rank 5's forward take 2.5 times as long."""
    result, _ = simulated(tp=2, sp=True)
    graph, machine = result.timeline.graph, result.machine
    edit = "compute * 2.5 where kind=gemm and phase=F and rank=5"
    ran = simulate(*edited(graph, machine, edit))
    truth = ran.seconds / result.timeline.seconds
    assert truth > 1.05
    healthy = result.cluster.capacity
    path = tmp_path / "timeline.json.gz"
    changed = edited(graph, machine, edit)[1]
    perfetto.write(ran, path, of=PricedMachine(changed, healthy))
    assert slowdown(read([path]))["slowdown"] == pytest.approx(truth, rel=0.01)
    hta.write_rank_files(ran, tmp_path, machine=changed)
    files = sorted(tmp_path.glob("rank*"))
    assert slowdown(read(files))["slowdown"] == pytest.approx(truth, rel=0.02)


def test_files_show_every_wait_and_message(tmp_path: Path) -> None:
    """Of batched exchanges too; read back, they are those that were simulated."""
    keys = {"pp": 2, "p2p": "batched", "schedule": PIPELINE, "model": {"layers": 2}}
    timeline = simulated(gpus=2, batch=4, **keys)[0].timeline
    hta.write_rank_files(timeline, tmp_path)
    recording = read([tmp_path])
    assert waits(recording.timeline) == waits(timeline)
    assert len(recording.timeline.graph.part_work) == len(timeline.graph.part_work)
    bare = read([without_calls(tmp_path)])
    assert "no event calls" in bare.warnings[0]
    assert {*waits(timeline)} <= {*waits(bare.timeline)}


def waits(timeline: Timeline) -> list[tuple[int, int, int]]:
    """Rank, start and awaited end, in microseconds, of all waits between streams of GPUs."""
    graph = timeline.graph
    later, earlier = owners(graph.wait_start), graph.wait_on
    host = np.array([name.startswith("host") for name in graph.streams])[graph.stream]
    some = (graph.stream[later] != graph.stream[earlier]) & ~host[earlier] & ~host[later]
    begin, end = (np.rint(of * 1e6).astype(int) for of in (timeline.start, timeline.end))
    columns = graph.rank[later[some]], begin[later[some]], end[earlier[some]]
    return sorted(zip(*(of.tolist() for of in columns), strict=True))


def replicas(seconds: np.ndarray, transfer: float, lag: dict[int, float] | None = None) -> Graph:
    """Ranks that compute (a row of seconds each) and meet in an all-reduce after every kernel."""
    b = Builder()
    n = len(seconds)
    for k in range(seconds.shape[1]):
        ops = []
        for rank in range(n):
            late = (lag or {}).get(rank, 0.0) if k == 0 else 0.0
            kernel = b.add(f"k{k}", rank, "compute", Fixed(float(seconds[rank, k])), lag=late)
            work = Fixed(transfer, "communication", "dp")
            ops.append(b.add("all_reduce", rank, "dp", work, [kernel]))
        b.join(ops)
        for rank in range(n):
            b.add("add", rank, "compute", Fixed(0.25), [ops[rank]])
    return b.graph()


def timed(graph: Graph) -> Timeline:
    return simulate(graph, ideal(graph))


def of(graph: Graph) -> dict[str, Any]:
    return slowdown(Recording(timed(graph), "traincast", ()))


def test_one_slow_rank_by_hand() -> None:
    """Kernels of 5 and 4 s, two all-reduces of 3 s: 15.5 s; with 9 and 6 s on rank 2, 21.5 s."""
    found = of(replicas(np.array([[5, 4], [5, 4], [9, 6], [5, 4]]), 3.0))
    assert found["slowdown"] == pytest.approx(21.5 / 15.5)
    assert found["by_kind"] == pytest.approx({"kernels": 21.5 / 15.5, "transfers": 1, "host": 1})
    assert "transfers of dp cannot be compared" in found["unknown"]


def test_of_two_ranks_the_slower_is_the_straggler() -> None:
    """Kernels of 5 and 8 s, an all-reduce of 3 s and 0.25 s behind it."""
    assert of(replicas(np.array([[5.0], [8.0]]), 3.0))["slowdown"] == pytest.approx(11.25 / 8.25)


def test_a_pause_is_the_hosts_time() -> None:
    found = of(replicas(np.array([[5.0, 4.0]] * 3), 3.0, {1: 7.0}))
    assert found["slowdown"] == pytest.approx(22.5 / 15.5)
    assert found["by_kind"] == pytest.approx({"host": 22.5 / 15.5, "kernels": 1, "transfers": 1})


def test_a_longer_step_of_equals_is_no_slowdown() -> None:
    """Each rank is fast in another kernel: of every kernel the lower median is 5, none has 15 s."""
    b = Builder()
    for rank, times in enumerate(((5.0, 5.0, 1.0), (1.0, 5.0, 5.0), (5.0, 1.0, 5.0))):
        for k, seconds in enumerate(times):
            b.add(f"k{k}", rank, "compute", Fixed(seconds))
    found = of(b.graph())
    assert found["slowdown"] is None
    assert "the step in which all ranks are alike is longer, by 36.36%" in found["unknown"]


def test_ranks_that_do_nothing_alike_are_not_compared() -> None:
    b = Builder()
    for rank in range(2):
        b.add(f"only on {rank}", rank, "compute", Fixed(3.0 + rank))
    found = of(b.graph())
    assert found["slowdown"] is None
    assert "100% of the time of kernels is in ones that no other rank runs" in found["unknown"]


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_slow_rank_costs_what_a_second_simulation_says(data: st.DataObject) -> None:
    ranks, kernels = data.draw(st.integers(3, 6)), data.draw(st.integers(1, 6))
    whole = st.integers(1, 50)
    times = np.array(data.draw(st.lists(whole, min_size=kernels, max_size=kernels)), float)
    each = np.tile(times, (ranks, 1))
    healthy = replicas(each, 3.0)
    assert of(healthy)["slowdown"] == 1.0
    each[data.draw(st.integers(0, ranks - 1))] *= data.draw(st.floats(1.01, 4.0))
    late = replicas(each, 3.0)
    truth = timed(late).seconds / timed(healthy).seconds
    assert of(late)["slowdown"] == pytest.approx(truth, rel=1e-9)


def test_what_is_usual_by_hand() -> None:
    """Two places of one kind on three ranks, the third much slower.

    Medians are 3.5 and 4.5, in all 8; ranks take 7.5, 7.5 and 14, so all get 7.5 / 8 of those.
    """
    values = np.array([3.0, 4.5, 3.5, 4.0, 6.0, 8.0])
    like, rank = np.array([0, 1, 0, 1, 0, 1]), np.array([0, 0, 1, 1, 2, 2])
    found = usual(values, like, np.zeros(6, np.int64), rank, np.ones(6))
    base = np.array([3.5, 4.5, 3.5, 4.5, 3.5, 4.5])
    assert found == pytest.approx(base * 7.5 / 8.0)


def test_a_clocks_tick_is_no_difference() -> None:
    values = np.array([20e-6, 21e-6, 21e-6, 30e-6])
    args = np.zeros(4, np.int64), np.zeros(4, np.int64), np.arange(4), np.ones(4)
    assert usual(values, *args, 1e-6).tolist() == pytest.approx([20e-6, 21e-6, 21e-6, 21e-6])


def test_places_are_positions_in_pipelines_of_one_shape() -> None:
    """Ranks 0, 2 and 1, 3 are pipelines of two; 4, 5, 6 is one of three; 7 is by itself."""
    b = Builder()
    for one, other in ((0, 2), (1, 3), (4, 5), (5, 6)):
        ops = [b.add("p2p", rank, "pp", Fixed(1.0, "communication", "pp")) for rank in (one, other)]
        b.join(ops)
    b.add("gemm", 7, "compute", Fixed(1.0))
    found = places(b.graph()).tolist()
    assert found[0] == found[1]
    assert found[2] == found[3]
    assert len({*found}) == 6


@pytest.mark.slow
def test_a_machine_that_does_not_repeat_the_file_is_not_used(tmp_path: Path) -> None:
    result, truth = simulated(slow(1), gpus=2, batch=2, model={"layers": 1})
    path = own_file(result, tmp_path)
    assert slowdown(read([path]))["method"] == "simulated again"
    text = gzip.decompress(path.read_bytes()).decode()
    head, events = text.split("\n", 1)
    content = json.loads(head + "]}")
    content["traincast"]["machine"]["fixed"] = [
        2 * of for of in content["traincast"]["machine"]["fixed"]
    ]
    path.write_bytes(gzip.compress((json.dumps(content)[:-2] + "\n" + events).encode()))
    found = slowdown(read([path]))
    assert found["method"] == "equal ranks"
    assert found["slowdown"] == pytest.approx(truth, rel=0.03)


def test_sorts_of_time_are_levelled_one_by_one() -> None:
    """Rank 0 has a slow kernel, rank 1 a pause: each alone is what is left of the other."""
    graph = replicas(np.array([[9.0], [5.0], [5.0]]), 3.0, {1: 2.0})
    peers = level.Peers(graph, timed(graph))
    assert peers.base.seconds == 12.25
    seconds = {sort: peers.without([sort])[2].seconds for sort in level.SORTS}
    assert seconds == {"kernels": 10.25, "transfers": 12.25, "host": 12.25}
    assert peers.without()[2].seconds == 8.25
