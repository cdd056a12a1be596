"""torchtitan's per-operator policy in torch's own selective checkpointing, on the CPU."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from sim.strategies.recompute.rule import flops
from tests import small as small_models
from tests.small import rerun

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn
checkpoints = pytest.importorskip("torch.utils.checkpoint")
dispatch = pytest.importorskip("torch.utils._python_dispatch")

T, H, A, FFN = 96, 64, 4, 96
HEADS, KV = A * 16, 2 * 16
LLAMA = replace(small_models.LLAMA, layers=6, heads=A, head_dim=16, ffn=FFN, vocab=128)


class Products(dispatch.TorchDispatchMode):
    """Counts the FLOPs of matrix products that torch runs."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == torch.ops.aten.mm.default:
            (m, k), n = args[0].shape, args[1].shape[1]
            self.flops += 2 * m * n * k
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """A Llama layer, its products in torchtitan's order."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(H, HEADS), (H, KV), (H, KV), (HEADS, H), (H, FFN), (H, FFN), (FFN, H)]
        self.parts = nn.ModuleList(nn.Linear(i, o, bias=False) for i, o in sizes)
        self.norms = nn.ModuleList(nn.RMSNorm(H) for _ in range(2))

    def forward(self, x: Any) -> Any:
        wq, wk, wv, wo, w1, w3, w2 = self.parts
        y = self.norms[0](x)
        q, k, v = (w(y).view(1, T, -1, 16).transpose(1, 2) for w in (wq, wk, wv))
        k, v = (z.repeat_interleave(2, 1) for z in (k, v))
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + wo(heads.transpose(1, 2).reshape(T, HEADS))
        y = self.norms[1](x)
        return x + w2(nn.functional.silu(w1(y)) * w3(y))


def policy(seen: Counter[bool], context: Any, func: Any, *_: Any, **__: Any) -> Any:
    """torchtitan's: attention, and every other product."""
    product = func == torch.ops.aten.mm.default
    seen[context.is_recompute] += product
    skipped = product and seen[context.is_recompute] % 2 == 0
    kept = product or "scaled_dot_product" in str(func)
    save = kept and not skipped
    return (
        checkpoints.CheckpointPolicy.MUST_SAVE
        if save
        else checkpoints.CheckpointPolicy.PREFER_RECOMPUTE
    )


def test_the_per_operator_policy_multiplies_again_what_torch_does() -> None:
    """FLOPs of torch's products with its selective checkpointing, less those without."""

    def ran(again: bool) -> int:
        block, x = Block(), torch.ones(T, H, requires_grad=True)
        chosen = partial(policy, Counter())
        contexts = partial(checkpoints.create_selective_checkpoint_contexts, chosen)
        with Products() as count:
            if again:
                y = checkpoints.checkpoint(block, x, use_reentrant=False, context_fn=contexts)
            else:
                y = block(x)
            y.sum().backward()
        return count.flops

    ours = flops(LLAMA, 1, T, rerun(("op",)))
    assert ran(True) - ran(False) == ours / LLAMA.layers > 0
