"""What a built step costs to build, and that its memory and its layers add up."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import pytest

from sim.builder.job import Job
from sim.builder.programs import Programs
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.machine import cluster as clusters
from sim.machine.cluster import Cluster
from sim.runs.run import prepare

Make = Callable[..., Job]
CASES = [
    {"tp": 2, "pp": 2, "dp": 2},
    {"tp": 2, "pp": 2, "dp": 2, "sp": True, "tied": False},
    {"tp": 4, "pp": 2, "sp": True, "schedule": "gpipe"},
    {"tp": 2, "pp": 4, "chunks": 2, "microbatches": 8, "scatter_gather": True},
]

LOOPS = {
    "loop", "completion", "plain", "kernels", "communication", "meetings", "flows", "gpu", "clock",
    "network",
}  # fmt: skip
"""Files of what runs ops one by one."""


def calls(job: Job, cluster: Cluster) -> int:
    """Python functions entered while a job is built and prepared to run: none of the event loop."""
    count: Counter[CodeType] = Counter()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            count[frame.f_code] += 1

    sys.setprofile(note)
    try:
        _, graph, machine = prepare(job, cluster, fold=False)
        simulate(graph, machine)
    finally:
        sys.setprofile(None)
    paths = {code: Path(code.co_filename) for code in count}
    ours = {code for code, path in paths.items() if "sim" in path.parts and path.stem not in LOOPS}
    return sum(count[code] for code in ours)


@pytest.mark.slow
def test_no_builder_loops_over_ops(small_job: Make) -> None:
    """Four times the micro-batches cost a few calls per step and message of the plan, with two
    layers per stage as with six: nothing is called for every op."""
    cluster = clusters.load("dgx_a100", 4)
    growth = {}
    for layers in (4, 12):
        common = {"tp": 2, "pp": 2, "layers": layers, "sp": True}
        few, many = (small_job(microbatches=m, **common) for m in (4, 16))
        calls(few, cluster)  # layers and traffic are remembered between runs
        growth[layers] = calls(many, cluster) - calls(few, cluster)
    ops = len(training_step(many)) - len(training_step(few))
    steps = 2 * 2 * 2 * (16 - 4)  # on both tensor-parallel ranks of both stages, F and B
    assert growth[12] <= growth[4] + 20
    assert growth[12] <= 12 * steps < ops / 8


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_memory_comes_back_to_what_stays(
    small_job: Make, case: dict[str, object], recompute: str
) -> None:
    """All that a rank allocates in a step it frees, category by category."""
    graph = training_step(small_job(**(case | {"recompute": recompute})))
    op = np.repeat(np.arange(len(graph)), np.diff(graph.memory_start))
    assert len(op)
    for rank in graph.ranks().tolist():
        for row, category in enumerate(graph.categories):
            mine = (graph.rank[op] == rank) & (graph.memory_category == row)
            assert abs(graph.memory_bytes[mine].sum()) < 1e-6, (rank, category)


def test_uneven_stages_hold_their_own_layers(small_job: Make) -> None:
    """Layers 0 | 1-4 | 5-6 | 7: every op of a layer lies on that stage's rank."""
    graph = training_step(small_job(pp=4, layers_per_stage=(1, 4, 2, 1)))
    owners = {(int(layer), int(rank)) for layer, rank in zip(graph.layer, graph.rank, strict=True)}
    held = [sorted(layer for layer, rank in owners if rank == r and layer >= 0) for r in range(4)]
    assert held == [[0], [1, 2, 3, 4], [5, 6], [7]]


def test_lanes_that_run_the_same_share_what_they_run(
    small_job: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight lanes cost the programs of one, and every collective has its own ranks as members."""
    made: list[object] = []
    monkeypatch.setattr(Programs, "step", _noted(Programs.step, made))
    training_step(small_job(tp=2, dp=1))
    one = len(made)
    graph = training_step(small_job(tp=2, dp=4))
    assert len(made) == 2 * one > 0
    member = np.repeat(np.arange(len(graph)), np.diff(graph.part_start))
    for part, work in enumerate(graph.part_work.tolist()):
        ranks = graph.rank[member[graph.part == part]].tolist()
        assert ranks == list(graph.works[work].ranks)


def _noted(step: Callable[..., object], made: list[object]) -> Callable[..., object]:
    def noted(self: Programs, variant: object, *place: object) -> object:
        made.append(variant)
        return step(self, variant, *place)

    return noted
