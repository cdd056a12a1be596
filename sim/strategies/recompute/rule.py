"""What the backward runs again: what of a layer, in which layers, and how many FLOPs.

``Recompute`` answers three questions: what of a layer runs again (the whole of it, modules by
Megatron-Core's names, or what torchtitan's per-operator policy does not save), in which layers of a
stage, and how many layers share one kept input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import floor, fsum

from sim.model.sizes import Model, layer_flops, model_flops, parts, with_further

OP = "op"
"""The only module that cannot be combined with others: torchtitan's policy, which saves outputs
operator by operator."""


@dataclass(frozen=True)
class Recompute:
    """What runs again: ``modules`` (None: whole layers), and in which layers of each stage.

    The layers are every ``every``-th (torchtitan), or a ``fraction`` of them, evenly spread
    (fms-fsdp), or the ``first`` few (Megatron-LM's method block). ``together`` layers share one
    kept input and run again at once (Megatron-LM's method uniform).
    """

    modules: tuple[str, ...] | None = None
    every: int = 1
    fraction: float = 1.0
    first: int | None = None
    together: int = 1


NAMED = {
    "none": Recompute(()),
    "selective": Recompute(("core_attn",)),
    "full": Recompute(),
}
"""The rules that a recipe gives as a word. Selective is that of Korthikanti et al. 2022, section 5.
"""


def of(said: str | Recompute) -> Recompute:
    """Return the rule that a word stands for; a rule is returned as it is."""
    return NAMED[said] if isinstance(said, str) else said


def chosen(rule: Recompute, count: int) -> list[bool]:
    """Return, for each of a stage's ``count`` layers, whether the rule recomputes it.

    A fraction is rounded as in fms-fsdp: the first k layers have k × fraction of them, halves
    rounded up.

    >>> chosen(Recompute(every=2), 4), chosen(Recompute(fraction=0.4), 5)
    ([False, True, False, True], [False, True, False, True, False])
    """
    part = Fraction(str(rule.fraction))
    after = [floor(part * k + Fraction(1, 2)) for k in range(count + 1)]
    first = count if rule.first is None else rule.first
    return [
        (k + 1) % rule.every == 0 and after[k + 1] > after[k] and k < first for k in range(count)
    ]


def hardware_flops(
    model: Model,
    batch: int,
    sequence: int,
    said: str | Recompute = "none",
    tp: int = 1,
    layers_per_stage: Sequence[int] = (),
) -> float:
    """Return the FLOPs of one step, recomputation included; the head is never recomputed.

    ``layers_per_stage`` is needed for rules that depend on a layer's place; without it there is one
    stage.
    """
    rule = of(said)
    done = model_flops(model, batch, sequence, tp)
    if model.resnet or rule.modules == ():
        return done
    stages = layers_per_stage or (model.layers,)
    picked = [pick for count in stages for pick in chosen(rule, count)]
    again = [layer for layer, pick in enumerate(picked) if pick] + [*with_further(model, (), True)]
    return done + fsum(_again(model, batch, sequence, layer, rule, tp) for layer in again)


def _again(model: Model, batch: int, sequence: int, layer: int, rule: Recompute, tp: int) -> float:
    """Return the recomputed FLOPs of one layer."""
    if rule.modules is None:
        return layer_flops(model, batch, sequence, layer)
    token, again = 2.0 * batch * sequence, set(rule.modules)
    if OP in again:
        projection = model.heads * model.head_dim * (tp == 1)
        columns = model.kv_heads * model.head_dim + projection + model.ffn * model.gated
        return token * model.hidden * columns
    found = [part.again(again, batch, sequence) for part in parts(model, layer)]
    return fsum(core for core, _ in found) + token * sum(matrices for _, matrices in found)
