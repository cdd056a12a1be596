"""Activation recomputation rewrites programs: what a layer keeps, and what runs again.

Whole layers keep only their input. The modules, by Megatron-Core's names, are:

- ``core_attn``: what grows with the square of the sequence (Korthikanti et al. 2022, section 5);
- ``mlp``, ``moe``, ``shared_experts``: the submodule is checkpointed. Its input stays, and all of
  it runs again before its backward. A dense MLP's norm is part of it, as Transformer Engine fuses
  them;
- ``layernorm``, ``moe_act``, ``mla_up_proj``: the *output* is discarded once it has been used, and
  the forward goes on without it. It is made again from its input, which stays, when the gradient of
  its user arrives (``CheckpointWithoutOutput`` in core/tensor_parallel/random.py). ``layernorm``
  means the norms that are not fused into a linear: before latent attention and before experts;
- two more, for other programs: ``norm`` (both norms of every layer) and ``mlp_act``.

``op`` is torchtitan's per-operator policy: attention, every other matrix product in the order q, k,
v, output, gate, up, down, and results of reduce-scatters are saved; the rest runs again. Results
that no backward reads are not kept, as under torch.compile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import fsum
from typing import NamedTuple

from sim.model.operators import Launch, Operator, Share, gemm
from sim.strategies.recompute.rule import OP, Recompute, chosen, of

Operators = Sequence[Operator]
INPUTS = ("qkv", "q_down", "q", "fc1", "router")
"""Operators that keep the output of the norm before them."""
LATENT = ("q_norm", "q", "q_up", "kv_norm", "kv_up", "rotary")
"""The operators from the latents of queries and keys to the input of the attention core."""


class Region(NamedTuple):
    """Operators that run again together. Positions are those in the layer."""

    again: Operators
    before: int  # position of the operator whose backward they precede
    until: int  # position of the operator whose backward needs the rebuilt bytes last
    size: float  # bytes rebuilt
    later: float  # those of the bytes that stay for weight gradients that come later


class Plan(NamedTuple):
    """What one layer of a stage keeps, and what runs again in its backward."""

    kept: float
    regions: Sequence[Region] = ()
    ahead: Sequence[tuple[int, Operators]] = ()  # layers that run again before its backward
    ahead_size: float = 0.0  # bytes that these rebuild


class Backward(NamedTuple):
    """One operator's backward, what runs again just before it, and what is not needed after it."""

    operator: Operator
    begins: Sequence[Region] = ()
    ends: Sequence[Region] = ()


def plans(
    said: str | Recompute, layers: Sequence[tuple[int, Operators]], share: Share
) -> list[Plan]:
    """Return a plan for each of a stage's layers (number and operators)."""
    rule = of(said)
    if rule.modules is None and rule.together > 1:
        size = rule.together
        groups = [layers[k : k + size] for k in range(0, len(layers), size)]
        return [plan for group in groups for plan in _together(group)]
    picks = chosen(rule, len(layers))
    return [
        _plan(ops, rule if pick else of("none"), share)
        for (_, ops), pick in zip(layers, picks, strict=True)
    ]


def plan(operators: Operators, said: str | Recompute, share: Share) -> Plan:
    """Return the plan of one layer to which the rule applies, wherever it is."""
    return _plan(operators, of(said), share)


def kept(operators: Operators, said: str | Recompute, share: Share) -> float:
    """Return the bytes that a layer to which the rule applies keeps from forward to backward."""
    return plan(operators, said, share).kept


def backward(operators: Operators, regions: Sequence[Region]) -> Iterator[Backward]:
    """Yield a layer's operators in backward order, with what runs again before each."""
    for i in reversed(range(len(operators))):
        begins = [region for region in regions if region.before == i]
        yield Backward(operators[i], begins, [region for region in regions if region.until == i])


def _plan(operators: Operators, rule: Recompute, share: Share) -> Plan:
    found = _regions(operators, rule, share)
    return Plan(_saved(operators) - fsum(region.size for region in found), found)


def _together(group: Sequence[tuple[int, Operators]]) -> Iterator[Plan]:
    """Yield plans of layers that share the first one's input and run again together.

    They run again before the last one's backward.
    """
    total = 0.0
    for k, (_, ops) in enumerate(group):
        stays = 0.0 if k else _input(ops)
        size = _saved(ops) - stays
        total += size
        region = Region((), len(ops) - 1, 0, size, size / 2)
        last = k + 1 == len(group)
        yield Plan(stays, [region], group if last else (), total if last else 0.0)


def _input(operators: Operators) -> float:
    """Return the bytes of the layer's input, which the first operator that keeps any keeps."""
    return next(op.saved for op in operators if op.saved)


def _saved(operators: Operators) -> float:
    return fsum(op.saved for op in operators)


def _regions(operators: Operators, rule: Recompute, share: Share) -> list[Region]:
    """Return the regions in forward order, without those inside another that runs again."""
    if rule.modules is None:
        size = _saved(operators) - _input(operators)
        return [Region(operators, len(operators) - 1, 0, size, size / 2)]
    if OP in rule.modules:
        return [_per_operator(operators, share)]
    found = [region for name in rule.modules for region in _module(operators, name)]
    outer = [r for r in found if not any(_within(r, other) for other in found)]
    return sorted(outer, key=lambda r: r.until)


def _within(one: Region, other: Region) -> bool:
    inside = {op.name for op in other.again}
    return len(one.again) < len(other.again) and all(op.name in inside for op in one.again)


def _module(ops: Operators, name: str) -> Iterator[Region]:
    """Yield the regions of a module; none where the layer has no such module."""
    at = {op.name: i for i, op in enumerate(ops)}
    if name == "core_attn":
        if core := [i for i, op in enumerate(ops) if op.core]:
            yield _checkpointed(ops, core, 0.0)
    elif name in ("layernorm", "norm"):
        if "attention_norm" in at and (name == "norm" or "q_norm" in at or "kv_norm" in at):
            yield _norm(ops, at["attention_norm"], at["projection"])
        if "mlp_norm" in at and (name == "norm" or "router" in at):
            yield _norm(ops, at["mlp_norm"], at["mlp_residual"] - 1)
    elif name == "mla_up_proj" and "kv_up" in at:
        yield _up_projection(ops, at)
    elif name in ("mlp_act", "moe_act"):
        last = at.get("fc2" if name == "mlp_act" else "expert_fc2")
        if last is not None:
            yield _activation(ops, last)
    elif name == "mlp" and "fc1" in at:
        span = range(at["mlp_norm"], at["mlp_residual"])
        yield _checkpointed(ops, span, ops[span[0]].saved)
    elif name == "moe" and "router" in at:
        span = range(at["mlp_norm"] + 1, at["mlp_residual"])
        yield _checkpointed(ops, span, ops[at["router"]].saved)
    elif name == "shared_experts" and "shared_fc1" in at:
        yield _checkpointed(ops, range(at["shared_fc1"], at["shared_fc2"] + 1), 0.0)


def _checkpointed(ops: Operators, span: Sequence[int], inputs: float) -> Region:
    """Return operators of which ``inputs`` bytes stay.

    If they have weight gradients, half of what they rebuild stays for these.
    """
    again = tuple(ops[i] for i in span)
    size = _saved(again) - inputs
    later = size / 2 if any(op.weight for op in again) else 0.0
    return Region(again, span[-1], span[0], size, later)


def _norm(ops: Operators, norm: int, last: int) -> Region:
    """Return a norm that is made again when the gradient of its submodule's output arrives."""
    size = fsum(op.saved for op in ops[norm : last + 1] if op.name in INPUTS)
    return Region((ops[norm],), last, norm + 1, size, size)


def _activation(ops: Operators, last: int) -> Region:
    """Return the input of an MLP's last linear, made again.

    For a gate in two kernels it includes what is between them, a third of what the gate keeps,
    until the gate's own backward.
    """
    apart, size = len(ops[last - 1].forward) > 1, ops[last].saved
    between = ops[last - 1].saved / 3 if apart else 0.0
    return Region((ops[last - 1],), last, last - apart, size + between, size)


def _up_projection(ops: Operators, at: dict[str, int]) -> Region:
    """Return queries, keys and values, made again from their latents, which stay."""
    span = [i for i in range(at["rotary"] + 1) if ops[i].name in LATENT]
    products = fsum(ops[i].saved for i in span if ops[i].name in ("q_up", "kv_up"))
    again = tuple(ops[i] for i in span)
    core = max(i for i, op in enumerate(ops) if op.core)
    return Region(again, core, span[0], products + ops[at["rotary"]].saved, products)


def _per_operator(ops: Operators, share: Share) -> Region:
    """Return all but the core, the products that are saved, and what no backward reads."""
    at = {op.name: i for i, op in enumerate(ops)}
    rows, columns = share.rows, (share.heads + share.kv_heads) * share.head_dim
    scattered = share.tokens < share.rows  # the projection's output is saved after its reduction
    activation = ops[at["fc2"] - 1]
    gated = activation.saved > ops[at["fc2"]].saved
    stays = ops[0].saved + ops[at["projection"]].saved + (share.residual if scattered else 0.0)
    stays += fsum(op.saved for op in ops if op.core) + float(rows * columns * share.element)
    stays += float(rows * share.ffn * share.element)  # the first product of the MLP
    size = _saved(ops) - stays
    parts = {
        "qkv": _columns(ops[at["qkv"]], share, share.kv_heads * share.head_dim),
        "fc1": _columns(ops[at["fc1"]], share, share.ffn if gated else 0),
    }
    left_out = {"fc2", "mlp_residual", *(["projection"] * scattered)}
    again = [parts.get(op.name, op) for op in ops if not op.core and op.name not in left_out]
    return Region(again, len(ops) - 1, 0, size, size / 2)


def _columns(op: Operator, share: Share, columns: int) -> Operator:
    """Return the part of a column-parallel linear that runs again."""
    if not columns:
        return Operator(op.name)
    product = gemm(share, share.rows, columns, share.hidden)
    return op._replace(forward=(Launch(op.name, product),))
