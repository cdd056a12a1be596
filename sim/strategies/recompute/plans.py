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

from sim.builder.blocks import OperatorBlock, Region
from sim.model.operators import Launch, Operator, Share, gemm
from sim.strategies.recompute.declare import OP, RecomputeTable
from sim.strategies.recompute.rule import chosen

Operators = Sequence[Operator]
INPUTS = ("qkv", "q_down", "q", "fc1", "router")
"""Operators that keep the output of the norm before them."""
LATENT = ("q_norm", "q", "q_up", "kv_norm", "kv_up", "rotary")
"""The operators from the latents of queries and keys to the input of the attention core."""


def of_stage(
    layers: Sequence[OperatorBlock], table: RecomputeTable, share: Share
) -> list[OperatorBlock]:
    """Return a stage's layers, those that run again with what they then keep."""
    if table.modules is None and table.method == "uniform" and (size := table.layers or 1) > 1:
        groups = [layers[k : k + size] for k in range(0, len(layers), size)]
        return [block for group in groups for block in _together(group)]
    picks = zip(layers, chosen(table, len(layers)), strict=True)
    return [planned(block, table, share) if pick else block for block, pick in picks]


def planned(block: OperatorBlock, table: RecomputeTable, share: Share) -> OperatorBlock:
    """Return a layer of which what the table names runs again."""
    found = _regions(block.operators, table, share)
    kept = _saved(block.operators) - fsum(region.size for region in found)
    return block._replace(kept=kept, regions=found)


def _together(group: Sequence[OperatorBlock]) -> Iterator[OperatorBlock]:
    """Yield layers that share the first one's input and run again together (method uniform).

    They run again before the last one's backward.
    """
    total, ahead = 0.0, [(block.layer, block.operators) for block in group]
    for k, block in enumerate(group):
        ops = block.operators
        stays = 0.0 if k else _input(ops)
        size = _saved(ops) - stays
        total += size
        found = block._replace(kept=stays, regions=[Region((), len(ops) - 1, 0, size, size / 2)])
        last = k + 1 == len(group)
        yield found._replace(ahead=ahead, ahead_size=total) if last else found


def _input(operators: Operators) -> float:
    """Return the bytes of the layer's input, which the first operator that keeps any keeps."""
    return next(op.saved for op in operators if op.saved)


def _saved(operators: Operators) -> float:
    return fsum(op.saved for op in operators)


def _regions(operators: Operators, table: RecomputeTable, share: Share) -> list[Region]:
    """Return the regions in forward order, without those inside another that runs again."""
    if table.modules is None:
        size = _saved(operators) - _input(operators)
        return [Region(operators, len(operators) - 1, 0, size, size / 2)]
    if OP in table.modules:
        return [_per_operator(operators, share)]
    found = [region for name in table.modules for region in _module(operators, name)]
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
