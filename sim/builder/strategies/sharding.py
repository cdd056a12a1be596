"""How replicas share parameters and gradients; what follows from it is a feature's own."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Fetch:
    """DeepSpeed's limits of ZeRO-3, in parameters (``zero_optimization`` of its configuration)."""

    prefetch_bucket: float = 5e7
    max_live: float = 1e9
    max_reuse_distance: float = 1e9


@dataclass(frozen=True)
class Sharding:
    """How parameters come and go.

    ``group`` ranks share a copy of the parameters, of which there are ``replicas``. Depths count
    units; math.inf gathers all at once.
    """

    group: int
    replicas: int = 1
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
    fetch: Fetch | None = None
    gather_stream: str = "fsdp nccl"  # one process group, so one communicator for both: NCCL runs
    reduce_stream: str = "fsdp nccl"  # its collectives one by one (pytorch/pytorch PR 186335)
    sum_stream: str = "fsdp all_reduce"
    experts: bool = False  # for experts, which have other replicas
    once: bool = False  # shards of gradients are summed across replicas in the last microbatch only
    gather_by: str = "auto"  # algorithm of the gathers
    words: str = ""  # how far parameters are gathered ahead

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

    def of_experts(self, degree: int) -> Sharding:
        """Return the same over the ``degree`` ranks that hold the same experts.

        As in torchtitan's meshes (``efsdp``), copies of all parameters are also copies of the
        experts, so experts have fewer shards by the factor by which ep and etp split them. Experts
        have communicators of their own.
        """
        replicas = degree if self.group == 1 else self.replicas
        streams = (f"expert {s}" for s in (self.gather_stream, self.reduce_stream, self.sum_stream))
        gather, reduce, sums = streams
        return replace(
            self,
            group=degree // replicas,
            replicas=replicas,
            experts=True,
            gather_stream=gather,
            reduce_stream=reduce,
            sum_stream=sums,
        )
