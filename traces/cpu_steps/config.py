"""Reads the sizes of a model from shapes in a trace: those of linears and of attention."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from traces.cpu_steps.run import Moved
from traces.cpu_steps.trace import RankTrace, Shapes

_ATTENTION = "aten::scaled_dot_product_attention"
_COPIED = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_ACTIVATIONS = ("gelu", "relu", "silu")


def from_trace(trace: RankTrace, steps: int, mode: str, moved: Sequence[Moved]) -> dict[str, Any]:
    """Return what the shapes of one rank's operators say; with tensor parallelism, its share.

    Without attention, a block is two linears, d to ffn and back.
    """
    calls: dict[str, Counter[Shapes]] = {}
    for name, shapes in zip(trace.names, trace.shapes, strict=True):
        calls.setdefault(name, Counter())[shapes] += 1
    linears = calls.get("aten::linear", Counter())
    named = {name for name, _, _ in trace.updates}
    buckets = [m.bytes for m in moved if m.collective == "all_reduce"]
    return {
        **_linears(linears, calls.get(_ATTENTION, Counter()), steps),
        "vocab": max((s[0][0] for s in calls.get("aten::embedding", ()) if s), default=0),
        "activation": next((a for a in _ACTIVATIONS if f"aten::{a}" in calls), ""),
        "optimizer": next((m[1] for n in sorted(named) if (m := re.search(r"#(\w+)", n))), ""),
        "bucket_bytes": max(buckets, default=0.0) if mode.startswith("ddp") else 0,
        "bucket_view": mode.startswith("ddp") and _COPIED not in calls,
    }


def _linears(linears: Counter[Shapes], attention: Counter[Shapes], steps: int) -> dict[str, Any]:
    """Return sizes from linears: (batch, sequence, inputs) times weights (outputs, inputs).

    Without any it returns nothing.
    """
    some = [s for s in linears if len(s) > 1 and len(s[0]) == 3 and len(s[1]) == 2]
    if not some:
        return {}
    d = min(s[1][1] for s in some)
    wide = max(s[1][1] for s in some)
    first = sum(n for s, n in linears.items() if s in some and s[1] == (wide, d))
    heads = max((s[0][1] for s in attention), default=0)
    mb, seq, _ = some[0][0]
    blocks = sum(attention.values()) or first
    return {
        "blocks": blocks // steps, "d": d, "heads": heads, "ffn": wide, "seq": seq, "mb": mb
    }  # fmt: skip
