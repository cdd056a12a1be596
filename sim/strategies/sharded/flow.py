"""How sharded parameters come and go: which of them at once, when, and on which streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.sharding import Sharding
from sim.strategies.sharded.tables import DeepSpeedTable


@dataclass(frozen=True)
class Flow(Sharding):
    """How parameters come and go. Depths count units; math.inf gathers all at once."""

    wrap: str | int = "layer"
    root: bool = True  # embedding and head are one unit, kept from the forward to the backward
    keep: bool = False  # all units are kept
    regroup: int = 0  # number of ranks that share the parameters between forward and backward
    forward: float = 1
    backward: float = 1
    behind: bool = False  # a backward's gather comes after the kernels of the unit before
    copies: bool = False  # copy into and out of the buffers of collectives
    scale: bool = True  # a kernel divides gradients by the number of ranks
    buffers: int = 0  # number of buffers for weights, and for gradients, that units use in turn
    bucketed: bool = False  # gradients are reduced in buckets, not unit by unit
    fetch: DeepSpeedTable | None = None  # limits of ZeRO-3, in parameters
    gather_stream: str = "fsdp nccl"  # one process group, so one communicator for both: NCCL runs
    reduce_stream: str = "fsdp nccl"  # its collectives one by one (pytorch/pytorch PR 186335)
    sum_stream: str = "fsdp all_reduce"
    experts: bool = False  # for experts, which have other replicas
    once: bool = False  # shards of gradients are summed across replicas in the last microbatch only
    gather_by: str = "auto"  # algorithm of the gathers

    @property
    def gathers(self) -> tuple[int, int]:
        """How often, at least, a forward and a backward gather a layer that is not there."""
        unsure = self.keep or self.wrap == "model" or self.fetch or self.gather_by != "auto"
        return (0, 0) if unsure else (1, 0 if self.regroup else 1)

    @property
    def one_by_one(self) -> bool:
        """Whether gathers and reductions share one communicator, which runs them one by one."""
        return self.gather_stream == self.reduce_stream

    @property
    def axis(self) -> str:
        """The axis along which parameters are gathered and gradients scattered."""
        whole, part = ("edp", "edp_shard") if self.experts else ("dp", "shard")
        return whole if self.replicas == 1 else part

    @property
    def across(self) -> str:
        """The axis along which the shards of gradients are summed."""
        whole, part = ("edp", "edp_replicate") if self.experts else ("dp", "replicate")
        return whole if self.group == 1 else part

    def of_experts(self, degree: int) -> Self:
        """Return the same for experts, which have communicators of their own."""
        names = ("gather_stream", "reduce_stream", "sum_stream")
        streams: dict[str, Any] = {name: f"expert {getattr(self, name)}" for name in names}
        return replace(super().of_experts(degree), experts=True, **streams)


def flow(data: DataParallel) -> Flow | None:
    """Return how parameters come and go; None: each rank has all of them."""
    assert data.sharding is None or isinstance(data.sharding, Flow)
    return data.sharding


def keeps_behind_backward(data: DataParallel) -> bool:
    """Return whether a pipeline's backwards leave parameters gathered, as torch's do in FSDP2."""
    s = flow(data)
    return s is not None and s.copies and data.accumulates and not s.regroup


def left_gathered(stages: Sequence[int], kinds: Sequence[str]) -> list[bool]:
    """Return before which steps of a rank the backward before has left parameters gathered.

    ``stages`` and ``kinds`` are those of the rank's steps in order. torch's pipeline turns off
    resharding after the backward (backward_maybe_with_nosync in
    torch/distributed/pipelining/stage.py, 2.13), but not after the forward. So a forward frees what
    a backward has left, and what comes after a forward gathers again.

    >>> left_gathered([0, 0, 0, 0, 0], ["F", "F", "B", "F", "B"])
    [False, False, False, True, False]
    """
    now: dict[int, bool] = {}
    out = []
    for stage, kind in zip(stages, kinds, strict=True):
        out.append(now.get(stage, False))
        now[stage] = kind != "F"
    return out
