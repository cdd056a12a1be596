"""The end of a step: what sums what, in which order, and how many bytes the update moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from sim.builder.job import Job
from sim.builder.program import Collective, Item
from sim.builder.slots import inputs
from sim.builder.strategies.data import Bucket
from sim.builder.strategies.optimizer import Tail, tail, zero_gradients
from sim.builder.training_step import training_step
from sim.engine import simulate
from sim.machine import cluster as clusters
from sim.runs.run import prepare
from tests.small import replicas

Make = Callable[..., Job]
N = 1200  # parameters
BUCKETS = [[Bucket(700, 9, frozenset({1})), Bucket(500, 12, frozenset({0}))]]


def names(items: Sequence[Item]) -> list[str]:
    return [item.name for item in items]


def moved(items: Sequence[Item]) -> dict[str, float]:
    return {item.name: item.work.bytes for item in items if not isinstance(item, Collective)}


def test_everything_in_megatrons_order() -> None:
    """Late reduction, partial sums, tied embedding, unscale, norm, clip, Adam, gathers."""
    data = replicas(degree=4, zero=1, overlap_grad_reduce=False)
    what = Tail(
        N, in_part=[("partial", "tp", 64.0)], embedding=128.0, loss_scale=True, norm_ranks=8
    )
    items = tail(what, BUCKETS, data, 2)
    assert names(items) == [
        "grad_scale", "grad_reduce_scatter", "grad_scale", "grad_reduce_scatter",
        "partial_grad_all_reduce", "embedding_grad_all_reduce", "unscale", "grad_norm",
        "grad_norm_all_reduce", "clip", "adam", "copy_weights", "param_all_gather",
        "param_all_gather",
    ]  # fmt: skip
    assert items[0].needs == items[2].needs == inputs(2)
    assert (items[1].needs, items[3].needs) == ((0,), (2,))
    assert set(items[4].needs) >= {
        *inputs(2),
        3,
    }  # the later reduction; its stream has the first before
    assert set(items[5].needs) >= {4}
    assert set(items[6].needs) >= {3, 4, 5}
    assert items[8].needs == (7,)
    assert items[9].needs == (8,)
    assert items[12].needs == items[13].needs == (11,)
    assert [items[i].bytes for i in (12, 13)] == [2 * 500, 2 * 700]  # in forward order


def test_nothing_to_sum_leaves_norm_clip_and_adam() -> None:
    """One GPU: no collective at all; and fp32 weights need no copy."""
    items = tail(Tail(N), BUCKETS, replicas(degree=1), 1)
    assert names(items) == ["grad_norm", "clip", "adam", "copy_weights"]
    assert items[0].needs == inputs(1)
    assert "copy_weights" not in names(tail(Tail(N), [], replicas(1, dtype="fp32"), 1))


@pytest.mark.parametrize(("grad", "size"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize(("zero", "share"), [(0, 1), (1, 4)])
def test_bytes_of_the_update(grad: str, size: int, zero: int, share: int) -> None:
    """All in fp32: norm reads gradients, clip and unscale read and write them; Adam reads gradient,
    parameter and two moments and writes three; copies from and to 16 bits. ZeRO-1 has a share."""
    data = replicas(degree=4, zero=zero, grad_dtype=grad)
    got = moved(tail(Tail(N, loss_scale=True), BUCKETS, data, 1))
    each = {"unscale": 8, "grad_norm": 4, "clip": 8, "adam": 28, "copy_weights": 4 + 2}
    if size == 2:
        each["copy_grads"] = 2 + 4
    assert got == {name: per * N / share for name, per in each.items()}
    assert zero_gradients(N, data).work.bytes == size * N


@pytest.mark.parametrize(
    "case", [{}, {"sp": True, "zero": 1}, {"overlap_grad_reduce": False}], ids=str
)
def test_adam_runs_after_every_gradient_and_the_norm_of_all_ranks(
    small_job: Make, case: dict[str, object]
) -> None:
    """In the timeline: no rank updates before the last gradient of any rank of its replica's model
    is summed, since the norm waits for all of them; and each rank does so once."""
    job = small_job(tp=2, pp=2, dp=2, **case)
    _, graph, machine = prepare(job, clusters.load("dgx_a100", 8), fold=False)
    done = simulate(graph, machine)
    code = {name: k for k, name in enumerate(graph.names)}
    adam, norm = (np.flatnonzero(graph.name == code[name]) for name in ("adam", "grad_norm"))
    assert sorted(graph.rank[adam].tolist()) == list(range(8))
    gradients = np.flatnonzero(graph.phase > 0)
    gradients = gradients[(graph.phase[gradients] < 5)]
    for dp in range(2):
        mine = job.ranks[:, 0, dp].ravel()
        last = done.end[gradients[np.isin(graph.rank[gradients], mine)]].max()
        together = done.end[norm[np.isin(graph.rank[norm], mine)]].max()
        assert done.start[adam[np.isin(graph.rank[adam], mine)]].min() >= max(last, together)


def test_fp16_scales_the_loss_and_bf16_does_not(small_job: Make) -> None:
    assert "unscale" in training_step(small_job(dtype="fp16", grad_dtype="fp16")).names
    assert "unscale" not in training_step(small_job()).names
