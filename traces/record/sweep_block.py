"""Measures a transformer block: forward, backward, halves of it, and the memory that it keeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from traces.record.fake_model import llama
from traces.record.sweep_time import dtype_name, random, seconds, synchronize
from traces.record.workers import Here

SIZES = (
    {"hidden": 2048, "heads": 16, "kv_heads": 16, "head_dim": 128, "ffn": 5632},
    {"hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "ffn": 14336},
    {"hidden": 8192, "heads": 64, "kv_heads": 8, "head_dim": 128, "ffn": 28672},
)
SMALL = ({"hidden": 64, "heads": 4, "kv_heads": 4, "head_dim": 16, "ffn": 176},)
SEQUENCES = (2048, 4096, 8192)


def block(here: Here, until: float) -> Iterator[dict[str, Any]]:
    """Yield Llama's block by size and sequence: seconds of F, B, I and W, bytes kept."""
    on_gpu = here.device != "cpu"
    for sizes in SIZES if on_gpu else SMALL:
        module = llama({**sizes, "layers": 1, "vocab": 1}, here.device, dtype_name(here)).layers[0]
        for length in SEQUENCES if on_gpu else (64,):
            if time.monotonic() > until:
                return
            facts = {**sizes, "sequence": length, "micro_batch": 1, "dtype": dtype_name(here)}
            x, gradient = (random(here, 1, length, sizes["hidden"], grad=g) for g in (True, False))
            kept = _kept(here, module, x, gradient)
            yield facts | kept | _times(here, module, x, gradient, until)
            module.zero_grad()


def _times(here: Here, module: Any, x: Any, gradient: Any, until: float) -> dict[str, float]:
    """Measure F, then B, I and W after a forward whose time is taken off again."""
    from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

    def whole() -> None:
        module(x).backward(gradient)

    def halves(second: bool) -> None:
        _, groups = stage_backward_input([module(x)], [gradient], [x], module.parameters())
        if second:
            stage_backward_weight(module.parameters(), groups)

    def of(run: Callable[[], object]) -> float:
        return float(seconds(here, run, until, 20)["s"])

    forward, both = of(lambda: module(x)), of(whole)
    inputs, all_three = of(lambda: halves(second=False)), of(lambda: halves(second=True))
    return {"F": forward, "B": both - forward, "I": inputs - forward, "W": all_three - inputs}


def _kept(here: Here, module: Any, x: Any, gradient: Any) -> dict[str, Any]:
    """Return bytes kept from forward to backward, counted by tensor; on a GPU also those allocated.

    Each storage counts once, and weights are left out.
    """
    import torch

    weights = {p.untyped_storage()._cdata for p in module.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    module(x).backward(gradient)  # so that gradients are there, and workspaces
    synchronize(here)
    if here.device != "cpu":
        torch.cuda.reset_peak_memory_stats(here.device)
    before = _allocated(here)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        out = module(x)
    after = _allocated(here)
    out.backward(gradient)
    synchronize(here)
    found: dict[str, Any] = {"kept_bytes": sum(kept.values())}
    if here.device != "cpu":
        peak = torch.cuda.max_memory_allocated(here.device)
        held = {"allocated_bytes": after - before, "peak_bytes": peak - before}
        found |= held | {"output_bytes": out.numel() * out.element_size()}
    return found


def _allocated(here: Here) -> int:
    """Return the bytes of all tensors now; 0 on the CPU, where they are not counted."""
    if here.device == "cpu":
        return 0
    import torch

    return int(torch.cuda.memory_allocated(here.device))
