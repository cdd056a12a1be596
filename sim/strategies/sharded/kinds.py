"""Sharded data parallelism: how parameters and gradients are split, and when they are gathered.

One description covers ZeRO-3 (Rajbhandari et al. 2019, arXiv:1910.02054), PyTorch's FSDP1 (Zhao et
al. 2023, arXiv:2304.11277) and FSDP2 (``torch.distributed.fsdp.fully_shard``), and YaFSDP.

The host is not simulated here, so the effect of its order on the streams is given as a depth: with
depth d a unit's gather may start when the unit d before it begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sim.recipe.recipe import ParallelismSection
from sim.strategies.sharded.flow import Flow
from sim.strategies.sharded.tables import DeepSpeedTable, own


def sharding(p: ParallelismSection, degree: int) -> Flow | None:
    """Return how ``degree`` replicas share parameters; None: each has all of them."""
    table = own(p).fsdp
    if not table:
        return zero3(degree, own(p).deepspeed) if p.zero == 3 else None
    given = table.model_dump(exclude_none=True, exclude={"kind"})
    made: dict[str, Callable[..., Flow]] = {"fsdp1": fsdp1, "fsdp2": fsdp2, "yafsdp": yafsdp}
    return made[table.kind](degree, **given)


def zero3(degree: int, fetch: DeepSpeedTable | None = None) -> Flow:
    """Return ZeRO-3: every unit comes and goes, and gradients are reduced in buckets.

    Without DeepSpeed's sizes it gathers one layer ahead and keeps nothing.
    """
    streams = ("zero all_gather", "zero reduce_scatter")
    return Flow(degree, 1, "layer", False, False, 0, 1, 1, False, False, True, 0, True, fetch,
                    *streams, words="ZeRO-3's prefetch")  # fmt: skip


def fsdp1(
    degree: int,
    sharding: str = "FULL_SHARD",
    shard: int | None = None,
    wrap: str | int = "layer",
    backward_prefetch: str = "BACKWARD_PRE",
    forward_prefetch: bool = False,
    limit_all_gathers: bool = True,
) -> Flow:
    """Return FSDP1, with a flat parameter per unit.

    The limiter lets a gather start when the unit two before it is freed, or with forward prefetch
    the unit three before it. Without the limiter the host runs ahead, and the forward issues all
    gathers at once.
    """
    group = {"NO_SHARD": 1}.get(sharding, shard or degree)
    ahead = (2 if forward_prefetch else 1) if limit_all_gathers else math.inf
    return Flow(
        group=group,
        replicas=degree // group,
        wrap=wrap,
        keep=sharding in ("SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"),
        forward=ahead,
        backward=1 if backward_prefetch == "BACKWARD_PRE" else 0,
        behind=backward_prefetch == "BACKWARD_POST",
        words="FSDP1's prefetch (forward_prefetch, backward_prefetch)",
    )


def fsdp2(
    degree: int,
    reshard_after_forward: bool | int = True,
    shard: int | None = None,
    wrap: str | int = "layer",
    prefetch: int | None = None,
    replicate: str = "each",
    copy_engines: bool = False,
) -> Flow:
    """Return FSDP2, with a shard per parameter, copied into and out of the gathered buffers.

    Without explicit prefetch a forward's gather waits for the copy-out of the unit two before it
    (``all_gather_state``), a backward's for that of the unit before it. ``replicate`` "once" is
    ``set_requires_all_reduce(False)`` in all microbatches but the last.
    """
    group = shard or degree
    regroup = reshard_after_forward if not isinstance(reshard_after_forward, bool) else 0
    depth = "2 in the forward, 1 in the backward" if prefetch is None else prefetch
    kept = reshard_after_forward is False
    return Flow(
        group=group,
        replicas=degree // group,
        wrap=wrap,
        keep=kept,
        regroup=0 if regroup == group else regroup,
        forward=2 if prefetch is None else prefetch,
        backward=1 if prefetch is None else prefetch,
        copies=True,
        scale=False,
        once=replicate == "once",
        gather_by="copy" if copy_engines else "auto",
        words="reshard_after_forward = false" if kept else f"prefetch depth {depth}",
    )


def yafsdp(degree: int, shard: int | None = None, wrap: str | int = "layer") -> Flow:
    """Return YaFSDP: units use two buffers for weights and two for gradients in turn."""
    group = shard or degree
    words = "YaFSDP's two buffers"
    return Flow(group, degree // group, wrap, scale=False, buffers=2, words=words)


def anchors(depth: float, count: int) -> list[int]:
    """Return, for each visit, the one at whose beginning it is gathered; -1: the program's.

    >>> anchors(1, 4), anchors(0, 3)
    ([-1, 0, 1, 2], [0, 1, 2])
    """
    return [max(-1, j - int(min(depth, count))) for j in range(count)]


def fetched(sizes: Sequence[int], fetch: DeepSpeedTable) -> list[int]:
    """Return the same for DeepSpeed; ``sizes`` are in parameters, 0 for what is there already.

    When a unit begins, it is fetched unless it has been; then the next ones are, until either limit
    is reached, the last of them whole.

    >>> fetched([4, 4, 4, 4], DeepSpeedTable(stage3_prefetch_bucket_size=5))
    [0, 0, 0, 1]
    """
    at, live = [-1] * len(sizes), 0.0
    ahead = 0
    for k, size in enumerate(sizes):
        if ahead <= k:
            at[k], live, ahead = k, live + size, k + 1
        left = fetch.stage3_max_live_parameters - live
        room, got = min(left, fetch.stage3_prefetch_bucket_size), 0
        while ahead < len(sizes) and got < room:
            at[ahead], got, ahead = k, got + sizes[ahead], ahead + 1
        live += got - size
    return at


def reused(sizes: Sequence[int], distance: float) -> list[bool]:
    """Return which units DeepSpeed keeps from the forward to the backward.

    A unit is kept if fewer than ``distance`` parameters are passed until it is used again.

    >>> reused([5, 5, 5], 11)
    [False, True, True]
    """
    behind = [sum(sizes[k + 1 :]) for k in range(len(sizes))]
    return [2 * passed < distance for passed in behind]
