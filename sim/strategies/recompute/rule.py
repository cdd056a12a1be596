"""In which layers what runs again in the backward, and how many FLOPs that is."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor, fsum

from sim.model.sizes import Model, layer_flops, parts, with_further
from sim.strategies.recompute.declare import OP, RecomputeTable


def chosen(table: RecomputeTable, count: int) -> list[bool]:
    """Return, for each of a stage's ``count`` layers, whether it runs again.

    Every n-th does (torchtitan), a fraction of them, evenly spread (fms-fsdp), or the first few
    (Megatron-LM's method block). A fraction is rounded as in fms-fsdp: the first k layers have
    k × fraction of them, halves rounded up.

    >>> chosen(RecomputeTable(every=2), 4), chosen(RecomputeTable(fraction=0.4), 5)
    ([False, True, False, True], [False, True, False, True, False])
    """
    part = Fraction(str(1.0 if table.fraction is None else table.fraction))
    after = [floor(part * k + Fraction(1, 2)) for k in range(count + 1)]
    first = table.layers if table.method == "block" and table.layers else count
    every = table.every or 1
    return [(k + 1) % every == 0 and after[k + 1] > after[k] and k < first for k in range(count)]


def flops(
    model: Model,
    batch: int,
    sequence: int,
    table: RecomputeTable,
    tp: int = 1,
    layers_per_stage: Sequence[int] = (),
) -> float:
    """Return the FLOPs that run again in one step over ``batch`` sequences; never the head's.

    ``layers_per_stage`` is needed for rules that depend on a layer's place; without it there is one
    stage.
    """
    if model.resnet or table.modules == ():
        return 0.0
    stages = layers_per_stage or (model.layers,)
    picked = [pick for count in stages for pick in chosen(table, count)]
    again = [layer for layer, pick in enumerate(picked) if pick] + [*with_further(model, (), True)]
    return fsum(_again(model, batch, sequence, layer, table, tp) for layer in again)


def _again(
    model: Model, batch: int, sequence: int, layer: int, table: RecomputeTable, tp: int
) -> float:
    """Return the recomputed FLOPs of one layer."""
    if table.modules is None:
        return layer_flops(model, batch, sequence, layer)
    token, again = 2.0 * batch * sequence, set(table.modules)
    if OP in again:
        projection = model.heads * model.head_dim * (tp == 1)
        columns = model.kv_heads * model.head_dim + projection + model.ffn * model.gated
        return token * model.hidden * columns
    found = [part.again(again, batch, sequence) for part in parts(model, layer)]
    return fsum(core for core, _ in found) + token * sum(matrices for _, matrices in found)
