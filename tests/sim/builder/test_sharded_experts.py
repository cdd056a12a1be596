"""Experts under ZeRO-2, ZeRO-3 and FSDP: shared by the ranks that hold the same ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sim.analysis.traffic import bytes_sent
from sim.graph import Communication
from sim.runs.check import check
from sim.runs.run import Result
from tests.recipes import ran

pytestmark = pytest.mark.slow

H, FFN, L, V, E = 256, 384, 4, 1024, 8
GPUS, M = 8, 3
EXPERTS = L * E * 3 * H * FFN  # all of them, gated
MODEL = {
    "layers": L, "hidden": H, "heads": 8, "vocab": V, "tied": False, "sequence": 256,
    "attention": "flash", "position": "rope", "norm": "rms", "dropout": 0.0, "gated": True,
    "experts": E, "topk": 2, "expert_ffn": FFN,
}  # fmt: skip
LAYERS = L * (4 * H * H + 2 * H + H * E)  # attention, norms and router
ROOT = 2 * V * H + H
DENSE = LAYERS + ROOT


def simulated(ep: int, model: dict[str, Any] | None = None, **parallelism: Any) -> Result:
    return ran(MODEL | (model or {}), GPUS * M, gpus=GPUS, ep=ep, **parallelism)


def sent(result: Result, axis: str, rank: int = 0) -> float:
    return bytes_sent(result.timeline.graph).get(axis, {}).get(rank, 0.0)


def same(size: float) -> object:
    return pytest.approx(size, rel=1e-12)


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("way", "experts", "dense"),
    [
        ({"zero": 2}, 4 * M + 2, (4 * M + 2) * DENSE),
        ({"zero": 2, "accumulate": True}, 4 + 2, (4 + 2) * DENSE),
        ({"zero": 3}, 8 * M, 8 * M * DENSE),
        ({"fsdp": {"kind": "fsdp1"}}, 8 * M, 8 * M * DENSE - 2 * M * ROOT),
        ({"fsdp": {}}, 8 * M, 8 * M * DENSE - 2 * M * ROOT),
        ({"fsdp": {"reshard_after_forward": False}}, 6 * M, 6 * M * DENSE),
        ({"fsdp": {"wrap": 2}, "accumulate": True}, 4 * M + 4, (4 * M + 4) * DENSE - 2 * M * ROOT),
        ({"fsdp": {"wrap": "model"}}, 6 * M, 6 * M * DENSE),
    ],
    ids=str,
)
def test_bytes_sent(ep: int, way: dict[str, Any], experts: int, dense: int) -> None:
    """Gathers of 2 bytes, 2 m or m of them, and reductions of 4: (n - 1) / n of what n share.

    ``experts`` and ``dense`` are bytes that are gathered or reduced, of experts per parameter.
    """
    result, edp = simulated(ep, **way), GPUS // ep
    mine = (edp - 1) / edp * experts * EXPERTS / ep
    all_else = (GPUS - 1) / GPUS * dense
    assert sent(result, "dp") == same(all_else + (mine if ep == 1 else 0))
    assert sent(result, "edp") == same(mine if ep > 1 else 0)


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
@pytest.mark.parametrize(
    ("way", "split"), [({"zero": 2}, 2), ({"zero": 3}, 3), ({"fsdp": {}}, 3)], ids=str
)
def test_bytes_held(ep: int, way: dict[str, Any], split: int) -> None:
    """2 + 4 + 12 per parameter over n; of experts over edp, of whom 1 / ep are here."""
    held = simulated(ep, **way).timeline.graph.persistent[0]
    for k, (category, each) in enumerate((("optimizer", 12), ("gradients", 4), ("weights", 2))):
        ways, own = (GPUS, GPUS // ep) if k < split else (1, 1)
        assert held[category] == same(each * (DENSE / ways + EXPERTS / ep / own)), category


def test_copies_of_all_are_copies_of_the_experts() -> None:
    """HSDP over 4 of 8, ep = 2: experts over 2 of their 4 ranks, sums across 2, as efsdp."""
    result = simulated(2, fsdp={"shard": 4})
    gathered = 2 * 2 * M * EXPERTS / 2 / 2
    assert sent(result, "edp_shard") == same(gathered + 4 * M * EXPERTS / 2 / 2)
    assert sent(result, "edp_replicate") == same(2 * 1 / 2 * 4 * M * EXPERTS / 2 / 2)
    groups = {
        (work.dimension, work.ranks)
        for work in result.timeline.graph.works
        if isinstance(work, Communication) and work.dimension.startswith("edp")
    }
    assert ("edp_shard", (0, 2)) in groups
    assert ("edp_replicate", (0, 4)) in groups


def test_copies_of_experts_are_summed_once_too() -> None:
    """Of M microbatches the last sums a share across 2 copies, of experts as of the rest."""
    result = simulated(2, fsdp={"shard": 4, "replicate": "once"})
    assert sent(result, "edp_shard") == sent(simulated(2, fsdp={"shard": 4}), "edp_shard")
    assert sent(result, "edp_replicate") == same(2 * 1 / 2 * 4 * EXPERTS / 2 / 2)
    assert sent(result, "replicate") == same(2 * 1 / 2 * 4 * DENSE / 4)


def test_a_layer_gathers_its_experts_apart() -> None:
    """Twice as many gathers, each of experts behind that of its layer and on its own stream."""
    graph = simulated(4, fsdp={}).timeline.graph
    ops = [i for i in np.flatnonzero(graph.rank == 0) if graph.op(i).name == "param_all_gather"]
    first = [graph.op(i) for i in ops if graph.op(i).microbatch == 0 and graph.op(i).phase == "F"]
    streams = [op.stream for op in first]
    assert [op.layer for op in first] == [-1, *(i for i in range(L) for _ in range(2))]
    assert streams == ["fsdp nccl", *["fsdp nccl", "expert fsdp nccl"] * L]


def test_gathers_run_one_at_a_time() -> None:
    """torch's all-gather stream is one, though experts have a communicator of their own."""
    timeline = simulated(2, fsdp={}).timeline
    graph = timeline.graph
    name = np.array(graph.names)[graph.name]
    mine = np.flatnonzero((graph.rank == 0) & (name == "param_all_gather"))
    mine = mine[np.argsort(timeline.start[mine])]
    assert np.all(timeline.start[mine][1:] >= timeline.end[mine][:-1] - 1e-12)


@pytest.mark.parametrize("way", [{"zero": 2}, {"zero": 3}, {"fsdp": {}}], ids=str)
@pytest.mark.parametrize("ep", [2, 8])
def test_check_says_the_peak_of_the_simulation(way: dict[str, Any], ep: int) -> None:
    """But for gradients that wait for a reduction: at most those of a layer and the root."""
    result = simulated(ep, **way)
    said = check(result.recipe)["memory"][0]["peak_bytes"]
    late = 4 * (EXPERTS / ep / L + LAYERS / L + ROOT)
    assert -1.0 <= result.summary["memory"][0]["peak_bytes"] - said <= late


REFUSED = [
    ({"kind": "yafsdp"}, 'kind = "yafsdp" needs tp = 1 and ep = 1 with model.experts'),
    ({"reshard_after_forward": 2}, "= 2 is not simulated with ep or tp > 1 and model.experts"),
    ({"shard": 2}, "ep x etp = 4 x 1 must divide tp x fsdp.shard = 1 x 2"),
]


@pytest.mark.parametrize(("fsdp", "sentence"), REFUSED)
def test_what_experts_cannot(fsdp: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        simulated(4, fsdp=fsdp)
    assert sentence in str(error.value)
