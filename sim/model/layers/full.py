"""Attention of every token to all before it, with queries, keys and values from one linear.

Queries and keys may have an RMS norm, over each head (Qwen 3, Gemma 3) or over all heads (OLMo 2).
A learned sink is one more logit per head (gpt-oss). An output gate (Qwen3-Next) is computed by the
same linear as the queries, and multiplied with the core's output by one kernel.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import ClassVar

from sim.model.attention import attention
from sim.model.operators import Launch, Operator, Share, linear, memory, norm
from sim.model.part import Part
from sim.model.sizes import Parameters


class Kind(Part):
    """Grouped-query attention; more tensor-parallel ranks than KV heads hold copies of these."""

    reads: ClassVar[tuple[str, ...]] = ("sinks", "qk_norm", "output_gate")

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return the QKV linear, the attention core and the projection."""
        attended = share.heads * share.head_dim
        gate = attended * self.model.output_gate
        qkv = attended + 2 * share.kv_heads * share.head_dim + gate
        return (
            linear(share, "qkv", share.hidden, qkv, "column", bias=self.model.qkv_bias),
            *self._norms(share),
            *attention(self.model, share, self),
            *((_gate(share),) if gate else ()),
            linear(share, "projection", attended, share.hidden, "row"),
        )

    def pairs(self, rows: int) -> float:
        """Return the pairs that the first ``rows`` queries have with keys: half of the square."""
        return rows**2 / 2

    def first_key(self, query: int) -> int:
        """Return the earliest key that a query meets."""
        return 0

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank."""
        held, model = super().parameters(tp, ep, etp), self.model
        more = self._width(tp) * model.qkv_bias + model.heads // tp * model.sinks
        heads = model.heads + model.kv_heads if model.qk_norm == "whole" else 2
        norms = heads * model.head_dim * bool(model.qk_norm)
        return held._replace(linear=held.linear + more, norm=held.norm + norms)

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of the QKV matrix and the projection."""
        h, attended = self.model.hidden, self.model.heads // tp * self.model.head_dim
        return h * self._width(tp) + attended * h

    def core(self, batch: int, sequence: int) -> float:
        """Return the FLOPs of scores and context, with the pairs that the causal mask hides."""
        both = 2 * self.pairs(sequence)
        return 4.0 * batch * both * self.model.heads * self.model.head_dim

    def again(self, modules: Collection[str], batch: int, sequence: int) -> tuple[float, int]:
        """Return the core if it runs again."""
        return self.core(batch, sequence) if "core_attn" in modules else 0.0, 0

    def _width(self, tp: int) -> int:
        """Return the columns of a rank's QKV matrix."""
        model = self.model
        queries = model.heads // tp * (1 + model.output_gate)
        return (queries + 2 * max(1, model.kv_heads // tp)) * model.head_dim

    def _norms(self, share: Share) -> tuple[Operator, ...]:
        """Return the norms of queries and keys."""
        if not self.model.qk_norm:
            return ()
        rows = replace(share, tokens=share.rows)
        heads = {"query_norm": share.heads, "key_norm": share.kv_heads}
        return tuple(norm(rows, name, False, n * share.head_dim) for name, n in heads.items())


def _gate(share: Share) -> Operator:
    """Return the kernel of output gates, which keeps both of its inputs."""
    x = float(share.rows * share.heads * share.head_dim * share.element)
    forward, backward = (memory(share, "elementwise", n * x) for n in (3, 5))
    launches = (Launch("output_gate", forward),), (Launch("output_gate_backward", backward),)
    return Operator("output_gate", *launches, saved=2 * x)
