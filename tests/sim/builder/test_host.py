"""The CPU that launches kernels: when it costs time, and when nobody notices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sim.analysis.idle import idle
from sim.builder.host import launched
from sim.engine import simulate
from sim.graph import Builder, Fixed, Graph, Memory
from sim.machine.hardware import ideal
from sim.memory.curve import peaks
from sim.runs.run import run

RECIPE = Path(__file__).parents[3] / "validation/recipes/zero_bubble_14.6b_1f1b.toml"
SMALL = {
    "model.layers": 8,
    "cluster.gpus": 4,
    "parallelism.pp": 4,
    "training.global_batch": 8,
    "schedule.layers_per_stage": None,
}


def three(*seconds: float, waits: bool = False) -> Graph:
    """Kernels one behind another; with ``waits`` the host waits for the first."""
    builder = Builder()
    for k, length in enumerate(seconds):
        size = Memory("activations", 8.0, "start"), Memory("activations", -8.0, "end")
        builder.add(f"k{k}", 0, "compute", Fixed(length), memory=size, microbatch=0)
    graph = builder.graph()
    waited = np.arange(len(graph)) == (0 if waits else -1)
    return launched(graph, 2.0, waited)


@pytest.mark.parametrize(
    ("graph", "starts"),
    [
        (three(5.0, 4.0, 3.0), [2.0, 7.0, 11.0]),  # launched at 2, 4, 6: the first alone waits
        (three(1.0, 1.0, 9.0), [2.0, 4.0, 6.0]),  # launch-bound
        (three(5.0, 4.0, 3.0, waits=True), [2.0, 9.0, 13.0]),  # launched at 2, 7 + 2, 11
    ],
)
def test_a_kernel_starts_when_it_is_launched(graph: Graph, starts: list[float]) -> None:
    """By hand, launches of 2 s: the GPU waits where kernels are shorter or the host has waited."""
    ran = simulate(graph, ideal(graph))
    assert ran.start[1::2].tolist() == starts
    gaps = idle(ran).by_cause()
    assert gaps["warm_up"].tolist() == [2.0]
    waited = (
        starts[-1] - 2.0 - sum(e - s for s, e in zip(ran.start[1:5:2], ran.end[1:5:2], strict=True))
    )
    assert gaps.get("launch", np.zeros(1)).tolist() == [waited]


def test_launches_that_take_no_time_change_nothing() -> None:
    """Every op, where the host waits for nothing but what the GPU waits for.

    Not to the bit: fewer kernels run as one segment, so sums of seconds are other sums.
    """
    way = SMALL | {"parallelism.p2p": "direction"}
    off = run(RECIPE, way)
    on = run(RECIPE, way | {"simulation.host": True, "simulation.launch_us": 0.0})
    assert on.timeline.end[1::2] == pytest.approx(off.timeline.end, rel=1e-12)
    assert on.timeline.start[1::2] == pytest.approx(off.timeline.start, rel=1e-12)


def test_memory_follows_the_order_of_launches() -> None:
    """However far the host runs ahead, what it frees it can take again: the peak stays."""
    way = SMALL | {"parallelism.p2p": "direction"}
    off, on = (run(RECIPE, way | {"simulation.host": host}) for host in (False, True))
    for mine, theirs in zip(peaks(on.timeline), peaks(off.timeline), strict=True):
        assert mine.peak_bytes == pytest.approx(theirs.peak_bytes, rel=1e-12)


def test_small_kernels_are_launch_bound() -> None:
    """Where every kernel is shorter than its launch, the step takes the launches of a rank."""
    small = SMALL | {"model.hidden": 128, "model.heads": 2, "model.head_dim": 64, "model.ffn": 512}
    one = {**small, "cluster.gpus": 1, "parallelism.pp": 1, "model.vocab": 512}
    on = run(RECIPE, one | {"simulation.host": True, "simulation.launch_us": 400.0})
    launches = len(on.timeline.graph) // 2
    assert on.timeline.seconds == pytest.approx(launches * 400e-6, rel=0.01)
    assert on.summary["critical_path_s"]["host"] > 0.98 * on.timeline.seconds


def test_a_host_that_waits_costs_more_than_one_that_runs_ahead() -> None:
    """Batched exchanges are waited for, others are not; no kernel starts before its launch."""
    host = {"simulation.host": True, "simulation.launch_us": 50.0}
    batched, streams = (
        run(RECIPE, SMALL | host | {"parallelism.p2p": p2p}) for p2p in ("batched", "direction")
    )
    for result in (batched, streams):
        start, end = result.timeline.start, result.timeline.end
        assert (start[1::2] >= end[::2]).all()
    launch = [of.summary["bubble"]["by_cause_s"].get("launch", 0.0) for of in (batched, streams)]
    assert launch[0] > launch[1]
