"""A Llama of any size as torch modules, and its tensor parallel plan, which is torchtitan's."""

from __future__ import annotations

from typing import Any


def llama(sizes: dict[str, Any], device: str = "cpu", dtype: str = "float32") -> Any:
    """Return embedding, blocks with grouped attention and a gated MLP, norm and head."""
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention, silu

    hidden, dim = sizes["hidden"], sizes["head_dim"]
    how: dict[str, Any] = {"device": device, "dtype": getattr(torch, dtype)}

    def linear(a: int, b: int) -> Any:
        return nn.Linear(a, b, bias=False, **how)

    class Attention(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
        """Heads as wide as the weights that a rank holds say."""

        def __init__(self) -> None:
            super().__init__()
            self.wq = linear(hidden, sizes["heads"] * dim)
            self.wk = linear(hidden, sizes["kv_heads"] * dim)
            self.wv = linear(hidden, sizes["kv_heads"] * dim)
            self.wo = linear(sizes["heads"] * dim, hidden)

        def forward(self, x: Any) -> Any:
            batch, sequence, _ = x.shape
            q, k, v = (
                w(x).view(batch, sequence, -1, dim).transpose(1, 2)
                for w in (self.wq, self.wk, self.wv)
            )
            out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            return self.wo(out.transpose(1, 2).reshape(batch, sequence, -1))

    class FeedForward(nn.Module):  # type: ignore[misc]
        """The gated MLP."""

        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w3 = (linear(hidden, sizes["ffn"]) for _ in range(2))
            self.w2 = linear(sizes["ffn"], hidden)

        def forward(self, x: Any) -> Any:
            return self.w2(silu(self.w1(x)) * self.w3(x))

    class Block(nn.Module):  # type: ignore[misc]
        """One layer."""

        def __init__(self) -> None:
            super().__init__()
            self.attention_norm, self.ffn_norm = (nn.RMSNorm(hidden, **how) for _ in range(2))
            self.attention, self.feed_forward = Attention(), FeedForward()

        def forward(self, x: Any) -> Any:
            x = x + self.attention(self.attention_norm(x))
            return x + self.feed_forward(self.ffn_norm(x))

    class Llama(nn.Module):  # type: ignore[misc]
        """The whole model."""

        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(sizes["vocab"], hidden, **how)
            self.layers = nn.ModuleList(Block() for _ in range(sizes["layers"]))
            self.norm = nn.RMSNorm(hidden, **how)
            self.head = linear(hidden, sizes["vocab"])

        def forward(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(self.norm(x))

    return Llama()


def tensor_parallel(model: Any, mesh: Any) -> None:
    """Split linears over the mesh and the sequence outside of them, with a parallel loss."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    whole, split = Replicate(), Shard(1)
    gathered = PrepareModuleInput(input_layouts=(split,), desired_input_layouts=(whole,))
    ends = {
        "embedding": RowwiseParallel(input_layouts=whole, output_layouts=split),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(
            input_layouts=split, output_layouts=Shard(-1), use_local_output=False
        ),
    }
    block = {
        "attention_norm": SequenceParallel(),
        "attention": gathered,
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=split),
        "ffn_norm": SequenceParallel(),
        "feed_forward": gathered,
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=split),
    }
    parallelize_module(model, mesh, ends)
    for layer in model.layers:
        parallelize_module(layer, mesh, block)
