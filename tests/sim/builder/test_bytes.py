"""Bytes that one rank sends in a step, and holds throughout, summed over the ops of built steps.

Every row that the project's list of parallelisms gives a figure for; the sums below know only what
NCCL's rings send, the right sides only sizes of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from sim.builder.groups import Lane
from sim.builder.job import Job
from sim.builder.training_step import training_step
from sim.graph import Communication, Graph

pytestmark = pytest.mark.slow

B, S, H, L, V = 3, 32, 64, 8, 512  # micro-batch, sequence, hidden, layers, padded vocabulary
A = 2 * B * S * H  # bytes of one residual activation
Make = Callable[..., Job]


def sent(graph: Graph, rank: int, *names: str, phases: str = "FRIWO") -> dict[str, Fraction]:
    """Exact bytes that a rank sends, by dimension, in ops of these phases whose name begins so.

    Ops are taken one by one; a ring sends (n - 1) / n of the buffer once or twice.
    """
    rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
    total: dict[str, Fraction] = {}
    for i in np.flatnonzero((graph.rank == rank) & (np.diff(graph.part_start) > 0)).tolist():
        op = graph.op(i)
        if not op.name.startswith(names or "") or op.phase not in phases:
            continue
        for part in graph.parts(i).tolist():
            work = graph.works[graph.part_work[part]]
            assert isinstance(work, Communication)
            assert rank in work.ranks
            n, size = len(work.ranks), Fraction(work.bytes)
            if work.collective == "p2p":
                each = size if work.ranks[0] == rank else Fraction(0)
            else:
                each = rounds[work.collective] * (n - 1) * size / n
            total[work.dimension] = total.get(work.dimension, Fraction(0)) + each
    return total


def both_ways(graph: Graph, rank: int, *names: str) -> tuple[Fraction, Fraction]:
    """Bytes that a rank sends along tp in forward, and in backward with what it recomputes."""
    ways = (sent(graph, rank, *names, phases=of).get("tp", Fraction(0)) for of in ("F", "RIW"))
    return next(ways), next(ways)


def stage(layers: int, t: int, first: bool = True, last: bool = True) -> int:
    """Parameters of one rank: matrices split over t, what is not split whole; tied once."""
    split = 12 * H * H + 7 * H  # QKV and first MLP biases are split with their columns
    rows = V * H // t * max(first, last)
    return layers * (split // t + 6 * H) + rows + 32 * H * first + 2 * H * last


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize(("grad", "size"), [("fp32", 4), ("bf16", 2)])
@pytest.mark.parametrize("overlap", [False, True])
def test_data_parallel(small_job: Make, n: int, grad: str, size: int, overlap: bool) -> None:
    """All-reduce 2 (N - 1) G / N once a step, whatever the buckets and micro-batches; ZeRO-1 the
    same bytes in one dtype, and (4 + 2) per parameter where gradients are fp32."""
    count = stage(L, 1)
    for m, bucket in [(1, 1e4), (5, 1e5), (5, 1e9)]:
        common = {"microbatches": m, "bucket": bucket, "grad_dtype": grad}
        plain = training_step(small_job(dp=n, overlap_grad_reduce=overlap, **common))
        g = size * count
        assert sent(plain, n - 1, "grad_all") == {"dp": Fraction(2 * (n - 1) * g, n)}
        zero = training_step(small_job(dp=n, zero=1, overlap_param_gather=overlap, **common))
        scattered, gathered = (
            sent(zero, 0, name)["dp"] for name in ("grad_reduce_scatter", "param_all_gather")
        )
        assert scattered == Fraction((n - 1) * g, n)
        assert gathered == Fraction((n - 1) * 2 * count, n)
        assert sent(zero, 0, "grad_", "param_")["dp"] == scattered + gathered
        if grad == "bf16":
            assert scattered + gathered == Fraction(2 * (n - 1) * g, n)


LAYERS = ("qkv", "projection", "fc1", "fc2")


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_and_sequence_parallel(small_job: Make, t: int) -> None:
    """A layer sends 4 (t - 1) A / t each way; with sequence parallelism backward 6 (t - 1) A / t,
    in pieces too; full recomputation repeats the forward's."""
    unit, m = Fraction((t - 1) * A, t), 2
    each = m * L * unit
    for sp, recompute, overlap, backward in [
        (False, "none", False, 4),
        (False, "full", False, 8),
        (True, "none", False, 6),
        (True, "selective", False, 6),
        (True, "full", False, 10),
        (True, "none", True, 6),
    ]:
        changes = {"sp": sp, "recompute": recompute, "tp_overlap": overlap}
        graph = training_step(small_job(tp=t, microbatches=m, **changes))
        got = both_ways(graph, t - 1, *LAYERS)
        tiny = each * Fraction(overlap, 10**12)  # pieces are a (t - 1)-th, rounded
        assert abs(got[0] - 4 * each) <= tiny
        assert abs(got[1] - backward * each) <= tiny


@pytest.mark.parametrize("t", [2, 8])
def test_embedding_head_and_norms(small_job: Make, t: int) -> None:
    """Vocabulary-parallel rows: looked-up rows, three fp32 numbers per token, the head's input."""
    unit, logits = Fraction((t - 1) * A, t), Fraction(2 * (t - 1) * 4 * B * S, t)
    plain = training_step(small_job(tp=t, microbatches=1))
    assert both_ways(plain, 0, "embedding") == (2 * unit, 0)
    assert both_ways(plain, 0, "loss") == (3 * logits, 0)
    assert both_ways(plain, 0, "head") == (0, 2 * unit)
    split = training_step(small_job(tp=t, microbatches=1, sp=True))
    assert both_ways(split, 0, "embedding") == (2 * unit, unit)  # all rows get learned positions
    assert both_ways(split, 0, "loss") == (3 * logits, 0)
    assert both_ways(split, 0, "head") == (unit, 2 * unit)
    whole = L * 6 * H + 2 * H  # norms and row-parallel biases, the final norm
    named = ("embedding", "loss", "head", "partial", *LAYERS)
    assert sent(split, 0)["tp"] == sent(split, 0, *named)["tp"]
    assert sent(plain, 0, "partial") == {}
    assert sent(split, 0, "partial") == {"tp": Fraction(2 * (t - 1) * 4 * whole, t)}


@pytest.mark.parametrize(
    ("t", "sp", "scatter"),
    [(1, False, False), (4, False, False), (4, True, False), (4, False, True)],
)
@pytest.mark.parametrize("v", [1, 2, 4])
def test_stage_boundaries(small_job: Make, t: int, sp: bool, scatter: bool, v: int) -> None:
    """b s h bytes per micro-batch, each way and chunk: v times the messages; / t where split, and
    then gathered over t (scatter-gather)."""
    p, m = 2, 4
    graph = training_step(
        small_job(tp=t, pp=p, chunks=v, microbatches=m, sp=sp, scatter_gather=scatter)
    )
    message = Fraction(A, t if sp or scatter else 1)
    activations, gradients = (v, v - 1), (v - 1, v)  # messages per micro-batch
    for rank, on in ((0, 0), (t * p - 1, 1)):
        want = (activations[on] + gradients[on]) * m * message
        assert sent(graph, rank)["pp"] == want
        ends = np.isin(graph.name, [k for k, n in enumerate(graph.names) if n.startswith("send")])
        assert (ends & (graph.rank == rank)).sum() == (2 * v - 1) * m
        gathered = (activations[1 - on] + gradients[1 - on]) * m * Fraction((t - 1) * A, t)
        assert sent(graph, rank, "input").get("tp", 0) == (gathered if scatter else 0)


def test_replicated_kv_heads(small_job: Make) -> None:
    """With 2 KV heads and t = 8 each is held by 4 ranks, which sum its gradient."""
    graph = training_step(small_job(tp=8, kv_heads=2))
    for rank in (0, 7):
        assert sent(graph, rank, "kv") == {"kv": Fraction(2 * 3 * L * 2 * 8 * (H + 1) * 4, 4)}
    assert sent(training_step(small_job(tp=2, kv_heads=2)), 0, "kv") == {}


def test_tied_embedding_and_gradient_norm(small_job: Make) -> None:
    """First and last stage sum the embedding's gradient; one fp32 number over all model ranks."""
    t, p, d = 2, 4, 3
    graph = training_step(small_job(tp=t, pp=p, dp=d))
    for rank, on in ((0, True), (t * d * p - 1, True), (t * d, False)):
        got = sent(graph, rank)
        assert got.get("embedding", 0) == (V * H // t * 4 if on else 0)  # 2 (2 - 1) G / 2
        assert got["model"] == Fraction(2 * (t * p - 1) * 4, t * p)
    untied = training_step(small_job(tp=t, pp=p, dp=d, tied=False))
    assert "embedding" not in sent(untied, 0)
    zero = training_step(small_job(tp=t, pp=p, dp=d, zero=1))
    assert sent(zero, 0)["model"] == Fraction(2 * (t * p * d - 1) * 4, t * p * d)


@pytest.mark.parametrize(
    ("grad", "zero", "fixed", "split"),
    [("bf16", 0, 16, 0), ("fp32", 0, 18, 0), ("bf16", 1, 4, 12), ("fp32", 1, 6, 12)],
)
def test_persistent_bytes(small_job: Make, grad: str, zero: int, fixed: int, split: int) -> None:
    """2 + 2 + 12 bytes per parameter, 2 + 4 + 12 with fp32 gradients; ZeRO-1 splits the 12."""
    t, p, d = 2, 2, 4
    graph = training_step(small_job(tp=t, pp=p, dp=d, grad_dtype=grad, zero=zero))
    for rank in range(t * p * d):
        first = rank < t * d
        count = stage(L // p, t, first=first, last=not first)
        states = {k: size for k, size in graph.persistent[rank].items() if k != "global_buffer"}
        assert sum(states.values()) == count * (fixed + Fraction(split, d))


def test_table_1_of_the_zero_paper(small_job: Make) -> None:
    """7.5 B parameters on 64 GPUs, GB = 1e9: 120 GB, and 31.4 GB with ZeRO-1."""
    count = stage(L, 1)
    for zero, published in ((0, 120.0), (1, 31.4)):
        job = small_job(dp=64, microbatches=1, zero=zero, grad_dtype="bf16")
        kinds = training_step(job, [Lane(0, 0, 0)]).persistent[0]
        held = kinds["weights"] + kinds["gradients"] + kinds["optimizer"]
        assert round(held / count * 7.5, 1) == published
