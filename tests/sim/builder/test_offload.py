"""Activations in host memory: what moves, when it is there again, and what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.builder.activations import stage_bytes
from sim.graph import Copy, owners
from sim.machine import cluster as clusters
from sim.memory.curve import peaks
from sim.runs.check import check
from sim.runs.run import job_of, load, run
from sim.runs.stage_times import stage_seconds

pytestmark = pytest.mark.slow

RECIPE = """
model = { preset = "llama3-8b", layers = 8, sequence = 4096 }
cluster = { topology = "dgx_h100", gpus = 8 }
parallelism = { tp = 4, pp = 2, p2p = "direction", sp = true }
training.global_batch = 4
"""


OFFLOAD = {"training.offload": "activations"}


def test_all_but_the_very_last_layer_goes_and_comes_back(recipe: Path) -> None:
    """Four layers of the first stage, three of the last, each microbatch, what the layer keeps."""
    plain, ran = run(recipe), run(recipe, OFFLOAD)
    held = peaks(plain.timeline)[1].by_category["activations"]  # the last stage has one in flight
    graph = ran.timeline.graph
    for direction in ("d2h", "h2d"):
        copies = [w for w in graph.works if isinstance(w, Copy) and w.direction == direction]
        assert [copy.bytes for copy in copies] == [pytest.approx(held / 4)]
        ops = np.flatnonzero(graph.work == graph.works.index(copies[0]))
        assert len(ops) == 7 * 4  # layers, microbatches
        assert set(graph.layer[ops].tolist()) == set(range(7))


def test_copies_take_the_bandwidth_of_the_host(recipe: Path) -> None:
    graph, timeline = (ran := run(recipe, OFFLOAD)).timeline.graph, ran.timeline
    for i in np.flatnonzero([isinstance(graph.works[w], Copy) for w in graph.work]):
        size = graph.works[graph.work[i]].bytes  # type: ignore[union-attr]
        assert timeline.end[i] - timeline.start[i] == pytest.approx(size / 63e9)


def test_a_backward_waits_for_what_it_needs(recipe: Path) -> None:
    """No kernel of a layer's backward starts before its copy is back, and that goes first.

    On a slow way to the host copies pile up.
    """
    slow = 'base = "dgx_h100"\nname = "slow"\n[gpu]\nhost_bandwidth = "1 GB/s"\nsource = "a test"\n'
    (recipe.parent / "slow.toml").write_text(slow)
    table = run(recipe, OFFLOAD | {"cluster.topology": "slow.toml"}).timeline.to_pandas()
    table = table[table.layer.isin(range(7))]
    for _, of in table.groupby(["layer", "microbatch"]):
        sent, back = (of[of.name.str.match(name)].iloc[0] for name in ("offload", "fetch"))
        kernels = of[of.stream == "compute"]
        forward, backward = kernels[kernels.phase == "F"], kernels[kernels.phase != "F"]
        assert sent.start >= forward.end.max()
        assert back.start >= sent.end
        assert backward.start.min() >= back.end


def test_less_is_held_and_the_step_is_no_shorter(recipe: Path) -> None:
    """Long sequences compute longer than they copy."""
    long = {"model.sequence": 32768, "training.global_batch": 8}
    plain, ran = run(recipe, long), run(recipe, long | OFFLOAD)
    before, after = (peaks(of.timeline)[0].by_category["activations"] for of in (plain, ran))
    assert after < 0.65 * before  # one layer comes back early
    assert plain.timeline.seconds <= ran.timeline.seconds < 1.2 * plain.timeline.seconds


@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_what_is_taken_is_given_back(recipe: Path, schedule: str, recompute: str) -> None:
    """Whole and halved backwards, with and without recomputation; check finds the peak too."""
    way = OFFLOAD | {"schedule.name": schedule, "training.recompute": recompute}
    result = run(recipe, way)
    graph = result.timeline.graph
    op = np.repeat(np.arange(len(graph)), np.diff(graph.memory_start))
    for rank in graph.ranks().tolist():
        assert abs(graph.memory_bytes[graph.rank[op] == rank].sum()) < 1e-3
    walked = check(load(recipe, way))["memory"][0]["peak_bytes"]
    assert walked <= peaks(result.timeline)[0].peak_bytes * (1 + 1e-9)


def test_searched_schedules_get_the_times_of_kernels_alone(recipe: Path) -> None:
    """The copies run beside them: stages take as long as they do without."""
    cluster = clusters.load("dgx_h100", 8)
    plain, moved = (stage_seconds(job_of(load(recipe, way)), cluster) for way in ({}, OFFLOAD))
    assert moved == plain
    assert run(recipe, OFFLOAD | {"schedule.name": "zb_1p"}).timeline.seconds > 0


@pytest.mark.parametrize("recompute", ["none", "full", {"modules": ["mlp_act"]}])
def test_backwards_begin_with_their_gradient(recipe: Path, recompute: object) -> None:
    """Also where something runs again first; a copy ahead of it needs none."""
    way = OFFLOAD | {"training.recompute": recompute}
    table = run(recipe, way).timeline.to_pandas()
    first = table[table.stage == 0]
    kernels = first[(first.stream == "compute") & first.phase.isin(["R", "I", "W"])]
    received = first[first.name.str.startswith("recv") & first.phase.isin(["I", "B"])]
    assert len(received) == 4
    for microbatch, of in kernels.groupby("microbatch"):
        assert of.start.min() >= received[received.microbatch == microbatch].end.max()
    fetched = first[first.name == "fetch_ahead"].set_index("microbatch").start
    assert (fetched < received.set_index("microbatch").end).any()


def test_a_share_of_the_activations_goes(recipe: Path) -> None:
    whole, half = (run(recipe, {"training.offload": {"activations": a}}) for a in (1.0, 0.5))
    for name in ("offload", "fetch", "fetch_ahead"):
        sizes = []
        for graph in (whole.timeline.graph, half.timeline.graph):
            row = np.flatnonzero(graph.name == graph.names.index(name))[0]
            sizes.append(graph.works[graph.work[row]].bytes)  # type: ignore[union-attr]
        assert sizes[1] == sizes[0] / 2


STAGES = {"training.offload": {"activations": 0.75, "by": "stage"}, "schedule.chunks": 2}
STAGES |= {"schedule.name": "interleaved_1f1b", "parallelism.p2p": "pair"}


def test_whole_stages_go_through_buffers_that_stay(recipe: Path) -> None:
    """Two layers of a stage, 3/4 of what they keep: one copy each way, no memory of its own.

    Three such shares stay on every rank. Of the last stage all is kept, and nothing moves.
    """
    plain = {key: way for key, way in STAGES.items() if key != "training.offload"}
    before, ran = run(recipe, plain), run(recipe, STAGES)
    kept = stage_bytes(ran.job, range(2), False, False)["activations"]
    graph = ran.timeline.graph
    for direction in ("d2h", "h2d"):
        copies = [w for w in graph.works if isinstance(w, Copy) and w.direction == direction]
        assert [copy.bytes for copy in copies] == [0.75 * kept]
        ops = np.flatnonzero(graph.work == graph.works.index(copies[0]))
        assert len(ops) == 3 * 4  # stages, microbatches
    for held, of in zip(peaks(before.timeline), peaks(ran.timeline), strict=True):
        assert of.by_category["offload_buffers"] == 3 * 0.75 * kept
        flying = round(held.by_category["activations"] / kept)
        assert held.by_category["activations"] == flying * kept
        kept_whole = 1 if of.rank < 4 else 2  # the last stage's, and the one that runs
        assert of.by_category["activations"] <= (0.25 * (flying - 1) + kept_whole) * kept


@pytest.mark.parametrize("bandwidth", ["63 GB/s", "2 GB/s"])
def test_a_stage_is_fetched_during_the_backward_before(recipe: Path, bandwidth: str) -> None:
    """Not earlier, and a backward waits for it. What runs waits for what left two forwards ago."""
    gpu = f'[gpu]\nhost_bandwidth = "{bandwidth}"\nsource = "a test"\n'
    slow = 'base = "dgx_h100"\nname = "slow"\n' + gpu
    (recipe.parent / "slow.toml").write_text(slow)
    table = run(recipe, STAGES | {"cluster.topology": "slow.toml"}).timeline.to_pandas()
    for _, of in table.groupby("rank", observed=True):
        kernels = of[(of.stream == "compute") & (of.microbatch >= 0)]
        span = kernels.groupby(["phase", "stage", "microbatch"], observed=True).agg(
            {"start": "min", "end": "max"}
        )
        forwards = span.loc["F"].sort_values("start")
        backwards = span.loc["I"].sort_values("start")
        fetched = of[of.name == "fetch_ahead"].set_index(["stage", "microbatch"])
        sent = of[of.name == "offload"].set_index(["stage", "microbatch"])
        assert len(fetched) == len(sent) >= 4
        for k, key in enumerate(backwards.index):
            if key not in fetched.index:
                continue
            assert fetched.start[key] >= sent.end[key]
            assert backwards.start[key] >= fetched.end[key]
            if k:
                earlier = kernels[kernels.end <= backwards.start.iloc[k - 1]].end.max()
                assert fetched.start[key] >= earlier
        for k, key in enumerate(forwards.index[:-2]):
            if key in sent.index:
                assert forwards.start.iloc[k + 2] >= sent.end[key]


@pytest.mark.parametrize(
    "way",
    [
        {"fsdp": {"kind": "yafsdp"}},  # once a deadlock
        {"fsdp": {"kind": "fsdp1"}},
        {"fsdp": {"kind": "fsdp2"}},
        {"zero": 3},
    ],
    ids=str,
)
def test_copies_use_no_parameters(recipe: Path, way: dict[str, object]) -> None:
    """Where parameters are gathered kernels wait for them and free them; copies do neither."""
    split: dict[str, object] = {"tp": 1, "pp": 1, "sp": False, "dp": 8, **way}
    of_split = {f"parallelism.{key}": value for key, value in split.items()}
    graph = run(recipe, OFFLOAD | {"training.global_batch": 16} | of_split).timeline.graph
    copies = np.flatnonzero([isinstance(work, Copy) for work in graph.works])
    moves = np.isin(graph.work, copies)
    gathers = np.array([name == "param_all_gather" for name in graph.names])[graph.name]
    assert moves.any()
    assert gathers.any()
    assert not np.any(gathers[graph.wait_on] & moves[owners(graph.wait_start)])
    assert not np.any(moves[graph.wait_on] & gathers[owners(graph.wait_start)])
    of = np.array([name == "gathered_parameters" for name in graph.categories])
    assert not np.any(moves[owners(graph.memory_start)[of[graph.memory_category]]])
