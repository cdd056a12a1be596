"""The end of a step: gradients made whole, their norm, the update, parameters made whole.

The order is Megatron-LM's: finish the data-parallel reduction, sum what tensor-parallel ranks and
the two copies of a tied embedding hold in part, then the norm over all model-parallel ranks, then
Adam.

With optimizer post-validation (Qi et al. 2023, arXiv:2401.10241, section 4, and the authors'
``pre_step``) a stage adds its part of the norm to what the stage before passes on, passes the sum
on and updates. Whether the whole norm exceeds the limit is checked in the warm-up of the next step.
Here it never does, so nothing is clipped or rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sim import strategies
from sim.builder import slots
from sim.builder.program import Collective, Item, Kernel, Program
from sim.builder.slots import Needs
from sim.builder.strategies import update
from sim.builder.strategies.data import Bucket, DataParallel, copies_back, gathers, reduction
from sim.graph import Compute, Memory
from sim.model.sizes import BYTES

NORM = 4.0  # bytes of a norm
COPIES = "optimizer_copies"
"""The memory of fp32 copies that exist during an update."""


@dataclass(frozen=True)
class Tail:
    """The work of one rank after its last backward."""

    parameters: int  # parameters that this rank holds
    experts: int = 0  # those of them in experts
    linear: int = 0  # those of them kept in fp8
    in_part: Sequence[tuple[str, str, float]] = ()  # gradients to sum: name, axis and bytes
    embedding: float = 0.0  # bytes of the tied embedding's gradient, to sum over its two stages
    twin: float = 0.0  # bytes of gradients to sum with the rank that holds the same stages
    loss_scale: bool = False  # fp16: gradients are unscaled and checked first
    norm_ranks: int = 1  # number of ranks that sum the norm; 0: no norm, nothing is clipped
    chain: tuple[str, ...] | None = None  # norm_in, norm_out: the norm passes from stage to stage
    stashed: bool = False  # the weights are copied before they are updated


def tail(
    what: Tail, stages: Sequence[Sequence[Bucket]], data: DataParallel, inputs: int
) -> Program:
    """Return the ops after the last backward, which come after that many inputs."""
    items: list[Item] = []
    before = slots.inputs(inputs)
    if not data.parallelism.overlap_grad_reduce:
        for bucket in (bucket for parts in stages for bucket in parts):
            items += reduction(bucket, data, len(items), before)
        items += copies_back(items, data)
        for change in strategies.hooks("reduced"):
            items = list(change(items, data))
    ends = (("embedding", "embedding", what.embedding), ("twin", "twin", what.twin))
    for name, axis, size in (*what.in_part, *ends):
        if size:
            needs: Needs = (*before, *_last(items))
            items.append(_sum(f"{name}_grad_all_reduce", axis, size, needs))
    items += _update(what, data, (*before, *_last(items)), len(items))
    if data.gathers_updated and not data.parallelism.overlap_param_gather:
        updated = (len(items) - 1, *_last_kernel(items))
        items += [g._replace(needs=updated) for parts in stages for g in gathers(parts, data)]
    return items


def _last(items: Sequence[Item]) -> tuple[int, ...]:
    """Return the latest collective of each axis; its stream orders those before it."""
    return tuple(
        {item.axis: i for i, item in enumerate(items) if isinstance(item, Collective)}.values()
    )


def _last_kernel(items: Sequence[Item]) -> tuple[int, ...]:
    """Return the last kernel of the GPU, if something else comes after it."""
    on_gpu = [i for i, item in enumerate(items) if isinstance(item, Kernel) and not item.stream]
    return tuple(i for i in on_gpu[-1:] if i != len(items) - 1)


def _sum(name: str, axis: str, size: float, needs: Needs) -> Collective:
    return Collective(name, axis, "all_reduce", size, "O", needs=needs)


def _update(what: Tail, data: DataParallel, needs: Needs, begin: int) -> list[Kernel | Collective]:
    """Return the update of this rank's share of the parameters.

    16-bit gradients are copied to fp32 first, unless the optimizer takes them as they are. Then
    come unscale (fp16), norm, clip (as if the norm always exceeded the limit), Adam, and the
    weights' 16-bit copy, unless Adam writes it (:mod:`sim.builder.strategies.update`). Without a
    flush there is no norm over all stages, so nothing is clipped.
    """
    share = data.share(what.parameters, what.experts)
    training = data.training
    own = share * update.on_gpu(training)
    grad, seen, weight = BYTES[training.grad_dtype], update.seen(training), BYTES[training.dtype]

    def kernel(name: str, size: float, needs: Needs = (), part: float = own) -> Kernel:
        return Kernel(name, Compute("optimizer", 0.0, part * size), "O", needs=needs)

    out: list[Kernel | Collective] = []
    if what.stashed:
        out.append(kernel("stash_weights", 2 * weight))
    if grad < seen:
        out.append(kernel("copy_grads", grad + seen, part=share))
    if what.loss_scale:
        out.append(kernel("unscale", 2 * seen, part=share))
    if what.norm_ranks:
        out.append(kernel("grad_norm", seen, part=share))
    summed = _summed(what, begin + len(out))
    out += summed
    met = tuple(begin + out.index(item) for item in summed if item.axis != "norm_out")
    norm = met[-1] if met else begin + len(out) - 1 - len(summed)
    if what.norm_ranks and own and what.chain is None:
        out.append(kernel("clip", 2 * seen, met))
        met = ()
    if own:
        narrow = (what.linear / what.parameters) * (weight - 1) if what.linear else 0.0
        first, *others = (kernel(*one) for one in update.kernels(training, narrow))
        out += _widened([first._replace(needs=met), *others], own * update.widened(training))
    for more in strategies.hooks("updates"):
        out += more(share, data, norm, begin + len(out))
    return [out[0]._replace(needs=needs), *out[1:]]


def _summed(what: Tail, at: int) -> list[Collective]:
    """Return what sums the norm, from position ``at`` of a program on, after the norm's kernel."""
    out = list[Collective]()
    if what.norm_ranks > 1:
        axis = "model" if what.chain is None else "stage_norm"
        out.append(_sum("grad_norm_all_reduce", axis, NORM, (at - 1,)))
    for axis in what.chain or ():
        needs = (at + len(out) - 1,)
        out.append(Collective(f"grad_{axis}", axis, "p2p", NORM, "O", needs=needs))
    return out


def _widened(kernels: Sequence[Kernel], size: float) -> list[Kernel]:
    """Return an update's kernels, which hold ``size`` bytes of fp32 copies from first to last."""
    if not size:
        return list(kernels)
    first, *others = kernels
    *inner, last = [first._replace(memory=(Memory(COPIES, size, "start"),)), *others]
    return [*inner, last._replace(memory=(*last.memory, Memory(COPIES, -size, "end")))]


def zero_gradients(parameters: int, data: DataParallel, experts: int = 0) -> Kernel:
    """Return the kernel at the start of a step that sets gradient buffers to zero."""
    size = data.gradients(parameters, experts) * BYTES[data.training.grad_dtype]
    return Kernel("zero_grads", Compute("optimizer", 0.0, size), "O")
