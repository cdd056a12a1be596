"""Measures kernels by shape: products of matrices, fused attention, kernels bound by memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from traces.record.plan import Row
from traces.record.sweep_time import dtype_name, random
from traces.record.workers import Here

THIN = (16, 64)  # rows of products that memory limits
TOKENS = (1024, 1280, 2304, 4096, 8192)  # whole tiles, and waves of several degrees of fullness
WIDTHS = (512, 1536, 4096, 12288)


def gemm(here: Here) -> Iterator[Row]:
    """Yield products as linears compute them, (m, k) times the transpose of (n, k)."""
    from torch.nn.functional import linear

    on_gpu = here.device != "cpu"
    shapes = (
        [(8192, 8192, 8192)]
        + [(m, n, k) for m in THIN for n in WIDTHS[2:] for k in WIDTHS[2:]]
        + [(m, n, k) for m in TOKENS for n in WIDTHS for k in WIDTHS]
        if on_gpu
        else [(m, n, k) for m in (64, 128, 256, 512) for n in (128, 512) for k in (128, 512)]
    )
    for m, n, k in shapes:
        facts = {"m": m, "n": n, "k": k, "dtype": dtype_name(here)}
        yield Row(facts, partial(linear, random(here, m, k), random(here, n, k)))


def attention(here: Here) -> Iterator[Row]:
    """Yield fused attention of as many tokens in ever longer sequences: forward, and backward."""
    on_gpu = here.device != "cpu"
    tokens, hidden = (16384, 2048) if on_gpu else (512, 128)
    for dim in (128, 64) if on_gpu else (64,):
        for causal in (True, False):
            for length in (512, 1024, 2048, 4096, 8192, 16384) if on_gpu else (64, 128, 256):
                shape = tokens // length, hidden // dim, length, dim
                for what, run in _attention(here, shape, causal).items():
                    facts = {
                        "what": what, "batch": shape[0], "heads": shape[1], "sequence": length,
                        "dim": dim, "causal": causal, "dtype": dtype_name(here),
                    }  # fmt: skip
                    yield Row(facts, run, joined=what == "backward")


def _attention(here: Here, shape: tuple[int, ...], causal: bool) -> dict[str, Callable[[], object]]:
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (random(here, *shape, grad=True) for _ in range(3))
    gradient = random(here, *shape)

    def forward() -> Any:
        return scaled_dot_product_attention(q, k, v, is_causal=causal)

    out = forward()
    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True),
    }


def elementwise(here: Here) -> Iterator[Row]:
    """Yield kernels that memory limits, by kind, with the bytes that they must read and write.

    All of them are measured in any case, as a topology's table needs every kind.
    """
    for kind, name, moved, run in _elementwise(here):
        yield Row({"kind": kind, "name": name, "bytes": moved}, run, joined=True)


def _elementwise(here: Here) -> Iterator[tuple[str, str, int, Callable[[], object]]]:
    import torch
    from torch.nn import functional

    rows, width = (8192, 4096) if here.device != "cpu" else (256, 256)
    x, y = (random(here, rows, width) for _ in range(2))
    scale = random(here, width)
    each = rows * width * x.element_size()
    logits = random(here, rows, 4 * width).float()
    table = random(here, 8 * width, width)
    tokens = torch.randint(8 * width, (rows,), device=here.device)
    yield "norm", "layer_norm", 2 * each, lambda: functional.layer_norm(x, (width,), scale, scale)
    yield "norm", "rms_norm", 2 * each, lambda: functional.rms_norm(x, (width,), scale)
    yield "elementwise", "add", 3 * each, lambda: x + y
    yield "elementwise", "gelu", 2 * each, lambda: functional.gelu(x)
    yield "elementwise", "silu", 2 * each, lambda: functional.silu(x)
    yield "softmax", "softmax", 2 * each, lambda: torch.softmax(x, -1)
    yield "embedding", "embedding", 2 * each, lambda: functional.embedding(tokens, table)
    size = 2 * logits.numel() * logits.element_size()
    yield "cross_entropy", "log_softmax fp32", size, lambda: torch.log_softmax(logits, -1)
    weight = torch.nn.Parameter(logits)
    weight.grad = torch.randn_like(logits)
    optimizer = torch.optim.Adam([weight], fused=True)
    yield "optimizer", "Adam fp32, fused", 28 * logits.numel(), optimizer.step
