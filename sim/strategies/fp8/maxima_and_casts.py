"""What fp8 adds to a stage and to a step: reductions of maxima and casts of weights.

Under delayed scaling Transformer Engine reduces the maxima of a forward when its autocast region
ends, which in Megatron-LM is a model chunk, and those of a backward in that of its first module
(``FP8GlobalStateManager.reduce_and_update_fp8_tensors``): twice per microbatch, each time waited
for. The group is all ranks of a pipeline stage, or those of tp (Megatron-LM's
``--tp-only-amax-red``).

Weights are cast in the first forward of a step and stay (``is_first_microbatch``). Sharded weights
are cast wherever they have been gathered.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.builder.edge import Edge
from sim.builder.program import Item, Kernel, Program
from sim.builder.slots import moved
from sim.graph import Compute
from sim.model.operators import Launch, Operator, Share, memory
from sim.recipe.recipe import ParallelismSection
from sim.strategies.fp8.precision import Fp8
from sim.strategies.fp8.quantise import PRODUCTS, Quantised, elements

FORWARD, BACKWARD = 3, 2  # maxima per linear: input, weight, output; gradients of output and input


def edges(p: ParallelismSection, fp8: Fp8 | None) -> Mapping[str, Edge]:
    """Return where maxima are reduced; groups of one have no such edges."""
    if fp8 is None:
        return {}
    out = dict[str, Edge]()
    if p.tp > 1:
        out |= {"amax": Edge(after="all_reduce"), "grad_amax": Edge(after_backward="all_reduce")}
    axis = {"all": "amax", "tp": "tp"}.get(fp8.amax, "")
    ranks = {"amax": p.tp * p.cp * (p.dp or 1), "tp": p.tp}.get(axis, 1)
    if fp8.recipe == "delayed" and ranks > 1:
        out["amaxes"] = Edge(after="all_reduce", axis=axis)
        out["grad_amaxes"] = Edge(after_backward="all_reduce", axis=axis)
    return out


def maxima(share: Share, linears: int, forward: bool) -> tuple[Operator, ...]:
    """Return the ops at the end of a stage's forward or backward that reduce maxima.

    They join the maxima, reduce them, and compute the scales that follow from them.
    """
    how = share.linears
    if not isinstance(how, Quantised) or how.fp8.recipe != "delayed" or not linears:
        return ()
    size = 4.0 * linears * (FORWARD if forward else BACKWARD)
    joined, scales = (
        (Launch(name, memory(share, "elementwise", 2 * size)),)
        for name in ("amax_join", "amax_scales")
    )
    if forward:
        return (
            Operator("amax", joined, edge="amaxes", buffer=size),
            Operator("amax_scales", scales),
        )
    return (
        Operator("amax_scales", (), scales),
        Operator("amax", (), joined, edge="grad_amaxes", buffer=size),
    )


def cast_weights(program: Program, fp8: Fp8, element: int, sharded: bool) -> Program:
    """Return a program with the kernels that make fp8 copies of the weights it multiplies.

    If weights are not sharded, it is the first forward of a step, which makes all copies. If they
    are, it has the weights that it has gathered, and makes the copy that its own products need.
    """
    out, place, seen = list[Item](), list[int](), set[tuple[int, str, bool]]()
    for item in program:
        if isinstance(item, Kernel) and _multiplies(item, sharded):
            key = (item.layer, item.name.removesuffix("_dgrad"), item.phase == "I")
            assert isinstance(item.work, Compute)
            if key not in seen:
                count = elements(item.work).right
                out += _casts(item, key[1], count, fp8, element, sharded)
            seen.add(key)
        place.append(len(out))
        out.append(item._replace(needs=moved(item.needs, place)))
    return out


def _multiplies(item: Kernel, sharded: bool) -> bool:
    """Return whether a kernel multiplies with a weight in fp8."""
    match item.work:
        case Compute(kind=kind, dtype="fp8"):
            return kind in PRODUCTS and item.phase in ("FRI" if sharded else "F")
    return False


def _casts(
    item: Kernel, name: str, count: int, fp8: Fp8, element: int, sharded: bool
) -> list[Kernel]:
    """Return the cast of one weight, or for one that is in fp8 already its transposed copy."""
    copies = 1 if sharded else fp8.copies
    sizes = dict[str, float]()
    if fp8.gathers_params:
        if fp8.copies > 1 and not (sharded and item.phase != "I"):
            sizes["transpose"] = 2 * fp8.weight * count
    else:
        if fp8.recipe == "tensorwise":
            sizes["amax"] = float(element * count)
        sizes["quantise"] = count * (element + copies * fp8.weight)
    return [
        Kernel(
            f"{name}_weight_{what}",
            Compute("elementwise", 0.0, size, by=fp8.kernel if what == "quantise" else ""),
            item.phase,
            item.layer,
        )
        for what, size in sizes.items()
    ]
