"""Data parallelism: gradients reduced in buckets beside the backward that makes them.

A bucket collects gradients in the order in which the backward of the last microbatch makes them and
is reduced as soon as it is full (Li et al. 2020, arXiv:2006.15704; Megatron-LM's
DistributedDataParallel). With ZeRO-1 (Rajbhandari et al. 2019, arXiv:1910.02054) the reduction is a
reduce-scatter, and the updated parameters are gathered bucket by bucket.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from sim import strategies
from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.slots import Needs, Slot, moved
from sim.builder.strategies.sharding import Sharding
from sim.graph import Compute
from sim.model.sizes import BYTES, Parameters
from sim.recipe.recipe import ParallelismSection, TrainingSection


@dataclass(frozen=True)
class DataParallel:
    """How replicas agree: the recipe's sections, and the numbers of ranks that follow from them.

    ``experts`` is how many ranks hold the same experts, if that is not the number of replicas of
    the rest; their gradients are reduced over an axis of their own, ``edp``.
    """

    parallelism: ParallelismSection
    training: TrainingSection
    degree: int
    bucket: float  # bytes of gradients that are reduced at once
    experts: int | None = None
    sharding: Sharding | None = None
    accumulates: bool = False  # split gradients stay whole until the last microbatch

    @property
    def weight_split(self) -> int:
        """Number of ranks that share the parameters."""
        return self.sharding.group if self.sharding else 1

    @property
    def gradient_split(self) -> int:
        """Number of ranks that share the gradients, once they are reduced."""
        whole = self.parallelism.zero < 2 and not self.sharding
        return 1 if whole or self.accumulates else self.optimizer_split

    @property
    def optimizer_split(self) -> int:
        """Number of ranks that share the optimizer's state and the update."""
        if self.sharding:
            return self.sharding.group
        p = self.parallelism
        return self.degree // p.optimizer_instances if p.zero else 1

    @cached_property
    def of_experts(self) -> DataParallel:
        """How the ranks agree that hold the same experts."""
        if self.experts is None:
            return self
        sharding = self.sharding and self.sharding.of_experts(self.experts)
        return replace(self, degree=self.experts, experts=None, sharding=sharding)

    def gathered(self, parameters: int, linear: int) -> float:
        """Return the bytes gathered for parameters, ``linear`` of them in layers' matrices."""
        return float(parameters * BYTES[self.training.dtype] - linear * self.gathered_less)

    @property
    def gathered_less(self) -> int:
        """Bytes by which a gathered element of a layer's matrix is less than others."""
        return sum(less(self.training) for less in strategies.hooks("gathered_less"))

    def share(self, parameters: int, experts: int) -> float:
        """Return how many of these parameters, some of them in experts, a rank updates."""
        dense = (parameters - experts) / self.optimizer_split
        return dense + experts / self.of_experts.optimizer_split

    def weights(self, parameters: int, experts: int) -> float:
        """Return how many of these parameters a rank holds."""
        return _over(parameters, experts, self.weight_split, self.of_experts.weight_split)

    def gradients(self, parameters: int, experts: int) -> float:
        """Return how many of these parameters' gradients a rank holds after their reduction."""
        return _over(parameters, experts, self.gradient_split, self.of_experts.gradient_split)

    def inside(self, axis: str) -> str:
        """Return the axis of gradients' scatters and parameters' gathers: dp, edp or a part."""
        one = self.parallelism.optimizer_instances == 1
        return axis if one else {"dp": "shard", "edp": "edp_shard"}[axis]

    @property
    def gathers_updated(self) -> bool:
        """Whether updated parameters are gathered, because each rank holds all of them."""
        replicas = max(self.degree, self.experts or 1)
        return replicas > 1 and self.parallelism.zero > 0 and not self.sharding

    @property
    def split(self) -> bool:
        """Whether backwards reduce gradients as they make them: ZeRO-2 and everything beyond."""
        split = self.parallelism.zero > 1 or self.sharding is not None
        return self.degree > 1 and split

    def reduces(self, place: str) -> bool:
        """Return whether a backward reduces: every one where gradients are split, else the last."""
        return place == "last" or (self.split and not self.accumulates)


def _over(parameters: int, experts: int, ranks: int, ranks_of_experts: int) -> float:
    if ranks == ranks_of_experts:
        return parameters / ranks
    return (parameters - experts) / ranks + experts / ranks_of_experts


HEAD = -2


class Bucket(NamedTuple):
    """Parameters whose gradients are reduced together."""

    parameters: int
    after: int  # position in the backward of the item that makes its last gradient
    layers: frozenset[int]  # whose parameters; -1: the embedding, HEAD: the output matrix
    axis: str = "dp"  # edp for experts
    linear: int = 0  # how many of the parameters multiply in fp8


def buckets(backward: Program, held: Parameters, data: DataParallel) -> list[Bucket]:
    """Cut a stage's parameters into buckets in the order in which ``backward`` makes gradients.

    Experts that are reduced apart have buckets of their own. Parameters without replicas are in no
    bucket.
    """
    made = _made(backward, held)
    apart = [(i, size) for i, size in made if data.experts and is_expert(backward[i])]
    parts = {"dp": (data.degree, [of for of in made if of not in apart])}
    parts["edp"] = (data.experts or 1, apart)
    out = [
        bucket
        for axis, (degree, some) in parts.items()
        if degree > 1
        for bucket in _cut(backward, some, data, axis)
    ]
    return sorted(out, key=lambda bucket: bucket.after)


def _cut(
    backward: Program, made: Sequence[tuple[int, int]], data: DataParallel, axis: str
) -> list[Bucket]:
    p, grad = data.parallelism, BYTES[data.training.grad_dtype]
    whole = not p.overlap_grad_reduce
    limits = [math.inf if whole else data.bucket / grad]
    if p.first_bucket_mb and not whole:
        limits.append(p.first_bucket_mb * 1e6 / grad)
    out: list[Bucket] = []
    count, linear, layers = 0, 0, set[int]()
    for i, size in made:
        count += size
        linear += _linear(backward[i], size)
        layers.add(_owner(backward[i]))
        if count >= limits[-1]:
            limits = limits[:1]
            out.append(Bucket(count, i, frozenset(layers), axis, linear))
            count, linear, layers = 0, 0, set()
    if count:
        out.append(Bucket(count, len(backward) - 1, frozenset(layers), axis, linear))
    return out


def _linear(item: Item, size: int) -> int:
    """Return how many of ``size`` parameters, whose gradients an item makes, multiply in fp8.

    Experts without tokens have no matrix in the item; other parameters added to it, norms, are not
    matrices.
    """
    match item:
        case Kernel(work=Compute(dtype="fp8", shape=shape)):
            return size if is_expert(item) else min(size, _elements(shape))
    return 0


def is_expert(item: Item) -> bool:
    """Return whether an item is about experts' parameters."""
    return item.name.startswith("expert_")


def _made(backward: Program, held: Parameters) -> list[tuple[int, int]]:
    """Return (item, parameters whose gradient it makes); what no matrix product makes comes last.

    A tied matrix that is held once is complete only with the embedding's part, which comes last.
    Experts without tokens are in no product; their gradients are zeros beside those of the others.
    """
    made: dict[int, int] = {}
    for i, item in enumerate(backward):
        if item.phase == "W" and (shape := _matrix(item)):
            made[i] = _elements(shape) if _owner(item) != HEAD else 0
    if heads := [i for i in made if _owner(backward[i]) == HEAD]:
        made[heads[-1]] = held.head  # each depth of multi-token prediction uses it
    experts = {
        i: shape[1] * shape[2]
        for i in made
        if is_expert(backward[i]) and (shape := _matrix(backward[i]))
    }
    local = held.expert // sum(experts.values()) if experts else 0
    made |= {i: local * one for i, one in experts.items()}
    last = len(backward) - 1 if held.embedding else max(made, default=len(backward) - 1)
    made[last] = made.get(last, 0) + held.total - sum(made.values())
    return sorted((i, size) for i, size in made.items() if size)


def _matrix(item: Item) -> tuple[int, ...]:
    """Return batch, m, n and k of matrix products, or () for anything else."""
    match item:
        case Kernel(work=Compute(kind="gemm" | "grouped_gemm", shape=shape)):
            return shape
    return ()


def _elements(shape: tuple[int, ...]) -> int:
    """Return the elements of the results: of one matrix, or of one for each expert."""
    runs = zip(shape[::4], shape[1::4], shape[2::4], strict=True)
    return sum(batch * m * n for batch, m, n in runs)


def _owner(item: Item) -> int:
    """Return the layer whose parameters an item uses, HEAD, or -1 at the embedding."""
    return HEAD if item.layer < 0 and _matrix(item) else item.layer


def reduce_gradients(backward: Program, parts: Sequence[Bucket], data: DataParallel) -> Program:
    """Return ``backward`` with each bucket's reduction issued after the item that fills it."""
    out: list[Item] = []
    place: list[int] = []  # old position -> new
    after: dict[int, list[Bucket]] = {}
    for bucket in parts:
        after.setdefault(bucket.after, []).append(bucket)
    for i, item in enumerate(backward):
        needs = moved(item.needs, place)
        place.append(len(out))
        out.append(item if needs == item.needs else item._replace(needs=needs))
        for bucket in after.get(i, ()):
            out += reduction(bucket, data, len(out))
    return [*out, *copies_back(out, data)]


def copies_back(items: Sequence[Item], data: DataParallel) -> list[Kernel]:
    """Return copies of sums out of buckets that are copies (DDP, no ``gradient_as_bucket_view``).

    The kernels that scale gradients have then written them into the buckets.
    """
    if data.parallelism.gradient_as_bucket_view or data.parallelism.zero:
        return []
    sums = [(i, item) for i, item in enumerate(items) if item.name == "grad_all_reduce"]
    return [
        Kernel("grad_copy_back", Compute("elementwise", 0.0, 2 * item.bytes), "O", needs=(i,))
        for i, item in sums
        if isinstance(item, Collective)
    ]


def reduction(
    bucket: Bucket, data: DataParallel, at: int, needs: Needs = ()
) -> tuple[Kernel | Collective, ...]:
    """Return the ops that average a bucket's gradients over the replicas.

    They start at position ``at`` of a program. A kernel divides the gradients by the number of
    replicas, then they are summed (Megatron-LM does so unless the collective averages). Instances
    of ZeRO-1 then sum their shards, after it on the same stream (``start_grad_sync`` of
    megatron/core/distributed/param_and_grad_buffer.py).
    """
    kind, axis = ("reduce_scatter" if data.parallelism.zero else "all_reduce"), bucket.axis
    size = float(bucket.parameters * BYTES[data.training.grad_dtype])
    scale = Kernel("grad_scale", Compute("elementwise", 0.0, 2 * size), "O", needs=needs)
    inside = Collective(f"grad_{kind}", data.inside(axis), kind, size, "O", needs=(at,))
    if data.parallelism.optimizer_instances == 1:
        return scale, inside
    across = {"dp": "replicate", "edp": "edp_replicate"}[axis]
    shard = size / (data if axis == "dp" else data.of_experts).optimizer_split
    summed = Collective("grad_all_reduce", across, "all_reduce", shard, "O", needs=(at + 1,))
    return scale, inside._replace(stream=axis), summed._replace(stream=axis)


def gathers(parts: Sequence[Bucket], data: DataParallel) -> list[Collective]:
    """Return all-gathers of updated parameters, one per bucket, in the order of the forward."""
    sizes = [(b.axis, data.gathered(b.parameters, b.linear)) for b in reversed(parts)]
    return [
        Collective("param_all_gather", data.inside(axis), "all_gather", size, "O", stream=axis)
        for axis, size in sizes
    ]


def wait_for_parameters(forward: Program, parts: Sequence[Bucket], begin: int) -> Program:
    """Let the items of ``forward`` wait for the gathers of their layer's buckets.

    The head of the training step has the b-th of :func:`gathers` at position ``begin`` + b.
    """
    out = list(forward)
    for b, bucket in enumerate(reversed(parts), begin):
        first = min((i for i, item in enumerate(out) if _uses(item, bucket)), default=0)
        out[first] = out[first]._replace(needs=(*out[first].needs, Slot.head(b)))
    return out


def _uses(item: Item, bucket: Bucket) -> bool:
    return isinstance(item, Kernel) and _owner(item) in bucket.layers
