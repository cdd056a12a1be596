"""The modules whose issue by the host is measured, by class, and how many operators they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from traces.record.fake_model import llama
from traces.record.workers import Here

WIDTH, HEADS, TOKENS, VOCAB = 32, 4, 8, 64
OF_BACKWARD = {"gemm": 2}
"""Kernels of the backward, where they are several: gradients of the input and of the weight."""
_NONE = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "detach", "lift_fresh"})
"""Operators that launch nothing, besides views."""


class Case(NamedTuple):
    """A class of op: what runs, on which input, and whether again on what comes out."""

    kind: str
    run: Callable[[Any], Any]
    x: Any
    chained: bool = True

    def outputs(self, times: int) -> list[Any]:
        """Return what comes out of so many runs: of the last one if they are chained, or of all."""
        if not self.chained:
            return [self.run(self.x) for _ in range(times)]
        out = self.x
        for _ in range(times):
            out = self.run(out)
        return [out]


def cases(here: Here) -> Iterator[Case]:
    """Yield a case for each class of kernel but the optimizer, in bf16; on the CPU gemm in fp32."""
    import torch
    from torch import nn
    from torch.nn import functional as F  # noqa: N812  as torch's documentation has it

    how: dict[str, Any] = {"device": here.device, "dtype": torch.bfloat16}
    x = torch.randn(1, TOKENS, WIDTH, requires_grad=True, **how)
    q = torch.randn(1, HEADS, TOKENS, WIDTH // HEADS, requires_grad=True, **how)
    logits = torch.randn(TOKENS, VOCAB, requires_grad=True, **how)
    labels = torch.zeros(TOKENS, dtype=torch.long, device=here.device)
    wide = x.detach().float().requires_grad_() if here.device == "cpu" else x  # bf16 computes there
    yield Case("gemm", nn.Linear(WIDTH, WIDTH, device=here.device, dtype=wide.dtype), wide)
    yield Case("attention", lambda y: F.scaled_dot_product_attention(y, y, y, is_causal=True), q)
    yield Case("norm", nn.LayerNorm(WIDTH, **how), x)
    yield Case("elementwise", F.gelu, x)
    yield Case("softmax", lambda y: y.softmax(-1), x)
    yield Case("embedding", nn.Embedding(VOCAB, WIDTH, **how), labels, chained=False)
    yield Case("cross_entropy", lambda y: F.cross_entropy(y, labels), logits, chained=False)


def layer(here: Here) -> Any:
    """Return a layer of Llama."""
    sizes = {"hidden": WIDTH, "heads": HEADS, "kv_heads": HEADS, "head_dim": WIDTH // HEADS}
    whole = llama({**sizes, "ffn": 2 * WIDTH, "layers": 1, "vocab": 1}, here.device, "bfloat16")
    return whole.layers[0]


def operators(case: Case) -> list[int]:
    """Return how many operators torch dispatches forward and backward for one run, without views.

    They are those of two runs less those of one, so that what begins and ends a backward is left
    out.
    """
    one, two = (_dispatched(case, times) for times in (1, 2))
    return [b - a for a, b in zip(one, two, strict=True)]


def _dispatched(case: Case, times: int) -> tuple[int, int]:
    import torch

    with _counter() as forward:
        outputs = case.outputs(times)
    gradients = [torch.ones_like(out) for out in outputs]
    with _counter() as backward:
        torch.autograd.backward(outputs, gradients)
    return forward.count, backward.count


def _counter() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to the type checker
        """Counts operators that compute."""

        count = 0

        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            returned = [one.alias_info for one in op._schema.returns]
            is_view = any(one and not one.is_write for one in returned)
            self.count += not is_view and op._schema.name.partition("::")[2] not in _NONE
            return op(*args, **(kwargs or {}))

    return Counter()
