"""The optimizer in host memory: what is copied, when, what the CPU does, and what it saves."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sim.graph import Compute, Copy, Host
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import Result, load, run
from traces.own import perfetto
from traces.own import read as perfetto_read

RECIPE = """
model = { preset = "llama3-8b", layers = 4, sequence = 2048 }
cluster = { topology = "dgx_h100", gpus = 8 }
parallelism = { tp = 2, sp = true, zero = 1 }
training.global_batch = 8
"""
SPEED = 0.43 * 76.8e9  # B/s that Adam reaches on a GPU's share of the host's memory


def offload(share: float, **more: object) -> dict[str, object]:
    return {"training.offload": {"optimizer": share, **more}}


def moved(result: Result, name: str) -> float:
    """Bytes of all ops of a name."""
    graph = result.timeline.graph
    rows = np.flatnonzero(graph.name == graph.names.index(name))
    return float(sum(graph.works[graph.work[i]].bytes for i in rows))  # type: ignore[union-attr]


def ops(result: Result) -> pd.DataFrame:
    return result.timeline.to_pandas().set_index("name")


@pytest.mark.parametrize(
    ("way", "share", "late"),
    [
        ({}, 1.0, False),
        ({}, 0.25, True),
        ({"parallelism.zero": 0}, 0.25, False),
        ({"parallelism.pp": 2}, 1.0, True),
    ],
)
def test_bytes_are_those_of_the_hosts_share(
    recipe: Path, way: dict[str, object], share: float, late: bool
) -> None:
    """4 bytes of gradient there, 28 moved by Adam, 2 of weight back, for each parameter."""
    way = way | {"parallelism.overlap_grad_reduce": not late, "simulation.fold": "auto"}
    result = run(recipe, way | offload(share))
    job = result.job
    split = 1 if way.get("parallelism.zero") == 0 else job.data.degree
    mine = sum(job.held(s).total for s in range(job.stages)) / split * share
    assert moved(result, "grad_to_host") == pytest.approx(4 * mine)
    assert moved(result, "host_adam") == pytest.approx(28 * mine)
    assert moved(result, "weights_from_host") == pytest.approx(2 * mine)
    on_gpu = moved(run(recipe, way), "adam") * (1 - share)
    assert (moved(result, "adam") if share < 1 else 0.0) == pytest.approx(on_gpu)


def test_without_replicas_gradients_leave_beside_the_backward(recipe: Path) -> None:
    """One GPU, no reduction: buckets go as the backward makes them, all before Adam."""
    alone = {"cluster.gpus": 1, "parallelism.tp": 1, "parallelism.sp": False, "parallelism.zero": 0}
    result = run(recipe, alone | offload(1.0))
    assert moved(result, "grad_to_host") == 4 * result.job.held(0).total
    table = ops(result)
    copies = table.loc["grad_to_host"]
    assert len(copies) > 4
    assert copies.start.min() < table[table.phase == "W"].end.max()
    assert copies.end.max() <= table.loc["host_adam"].start


def test_mixtures_send_what_no_replica_reduces_too(recipe: Path) -> None:
    """Experts split over all ranks have no replicas; their gradients go all the same."""
    mixture = {"model.experts": 4, "model.topk": 2, "model.expert_ffn": 512}
    way = {"parallelism.ep": 8, "model.experts": 8, "parallelism.etp": 1}
    result = run(recipe, mixture | way | offload(1.0))
    held, data = result.job.held(0), result.job.data
    assert data.experts == 1
    mine = (held.total - held.expert) / data.degree + held.expert
    assert moved(result, "grad_to_host") == pytest.approx(4 * mine)
    assert moved(result, "host_adam") == pytest.approx(28 * mine)


@pytest.mark.parametrize("overlap", [False, True])
def test_each_step_waits_for_the_one_before(recipe: Path, overlap: bool) -> None:
    """Reduced, copied, the norm found, Adam, copied back, gathered; seconds by hand."""
    result = run(recipe, offload(1.0, overlap=overlap))
    table = ops(result)
    reduced, sent = table.loc["grad_reduce_scatter"], table.loc["grad_to_host"]
    assert (sent.start.to_numpy() >= reduced.end.to_numpy()).all()
    adam, back = table.loc[["host_adam"]], table.loc[["weights_from_host"]]
    assert len(adam) == len(back)
    assert (len(adam) > 1) == overlap
    assert adam.start.min() >= table.loc["grad_norm_all_reduce"].end
    assert (back.start.to_numpy() >= adam.end.to_numpy()).all()
    assert table.loc["param_all_gather"].start.min() >= back.end.max()
    mine = result.job.held(0).total / 4
    assert (adam.end - adam.start).sum() == pytest.approx(28 * mine / SPEED)
    assert (back.end - back.start).sum() == pytest.approx(2 * mine / 63e9)


def test_copies_back_hide_behind_the_update_of_the_next(recipe: Path) -> None:
    whole, cut = (run(recipe, offload(1.0, overlap=o)) for o in (False, True))
    mine = whole.job.held(0).total / 4
    pieces = len(ops(cut).loc[["host_adam"]])
    hidden = 2 * mine / 63e9 * (1 - 1 / pieces)
    saved = whole.timeline.seconds - cut.timeline.seconds
    assert saved == pytest.approx(hidden, rel=1e-6)


def test_the_gpu_updates_the_rest_meanwhile(recipe: Path) -> None:
    table = ops(run(recipe, offload(0.5)))
    assert table.loc["adam"].start < table.loc["host_adam"].end
    assert table.loc["param_all_gather"].start.min() >= table.loc["copy_weights"].end


def test_memory_moves_to_the_host(recipe: Path) -> None:
    """12 bytes a parameter go; the host holds them and a gradient of 4."""
    plain, result = run(recipe), run(recipe, offload(0.75))
    before, after = (of.summary["memory"][0] for of in (plain, result))
    mine = plain.job.held(0).total / 4
    assert before["by_category"]["optimizer"] == 12 * mine
    assert after["by_category"]["optimizer"] == 3 * mine
    assert before["peak_bytes"] - after["peak_bytes"] == pytest.approx(9 * mine)
    by_category = {"optimizer": 9 * mine, "gradients": 3 * mine}
    held = {"rank": 0, "bytes": 12 * mine, "by_category": by_category}
    assert result.summary["host_memory"] == [held]
    assert "host_memory" not in plain.summary
    walked = check(load(recipe, offload(0.75)))["memory"][0]
    assert walked["by_category"]["optimizer"] == 3 * mine


def test_the_word_is_all_of_it_and_the_launching_host_can_be_simulated(recipe: Path) -> None:
    word = run(recipe, {"training.offload": "optimizer"})
    assert word.timeline.seconds == run(recipe, offload(1.0)).timeline.seconds
    launched = run(recipe, {"training.offload": "optimizer", "simulation.host": True})
    assert launched.timeline.seconds >= word.timeline.seconds


def test_a_file_brings_back_work_of_the_host(recipe: Path, tmp_path: Path) -> None:
    timeline = run(recipe, offload(0.5)).timeline
    perfetto.write(timeline, tmp_path / "t.json.gz")
    back = perfetto_read.read(tmp_path / "t.json.gz")
    kinds = (Host, Copy, Compute)
    counts = [
        [sum(isinstance(w, k) for w in t.graph.works) for k in kinds] for t in (timeline, back)
    ]
    assert counts[0] == counts[1]
    assert (back.end == timeline.end).all()


REFUSED = [
    ({"parallelism.zero": 2}, "not simulated with parallelism.zero = 2"),
    ({"parallelism.zero": 0, "parallelism.fsdp": {"kind": "fsdp2"}}, "parallelism.fsdp"),
    ({"training.offload": {}}, "is empty"),
    ({"training.offload": {"activations": 0.5, "overlap": True}}, "needs training.offload.opt"),
    ({"training.offload": {"optimizer": 1.5}}, "offload.optimizer = 1.5 must be at most 1"),
    ({"training.offload": "weights"}, "must be 'activations' or 'optimizer'"),
]


@pytest.mark.parametrize(("way", "sentence"), REFUSED)
def test_what_it_does_not_go_with(recipe: Path, way: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        recipe_file.load(recipe, offload(1.0) | way)


def test_the_memory_of_the_host_says_how_fast(recipe: Path) -> None:
    slow = (
        'base = "dgx_h100"\nname = "x"\n[gpu]\nhost_memory_bandwidth = "7.68 GB/s"\nsource = "y"\n'
    )
    (recipe.parent / "slow.toml").write_text(slow)
    fast = ops(run(recipe, offload(1.0))).loc["host_adam"]
    late = ops(run(recipe, offload(1.0) | {"cluster.topology": "slow.toml"})).loc["host_adam"]
    assert late.end - late.start == pytest.approx(10 * (fast.end - fast.start))
