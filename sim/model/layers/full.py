"""Attention of every token to all before it, with queries, keys and values from one linear."""

from __future__ import annotations

from collections.abc import Collection

from sim.model.attention import attention
from sim.model.operators import Operator, Share, linear
from sim.model.part import Part
from sim.model.sizes import Parameters


class Kind(Part):
    """Grouped-query attention; more tensor-parallel ranks than KV heads hold copies of these."""

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return the QKV linear, the attention core and the projection."""
        attended = share.heads * share.head_dim
        qkv = attended + 2 * share.kv_heads * share.head_dim
        return (
            linear(share, "qkv", share.hidden, qkv, "column", bias=self.model.qkv_bias),
            *attention(self.model, share),
            linear(share, "projection", attended, share.hidden, "row"),
        )

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank."""
        held = super().parameters(tp, ep, etp)
        return held._replace(linear=held.linear + self._width(tp) * self.model.qkv_bias)

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of the QKV matrix and the projection."""
        h, attended = self.model.hidden, self.model.heads // tp * self.model.head_dim
        return h * self._width(tp) + attended * h

    def core(self, batch: int, sequence: int) -> float:
        """Return the FLOPs of scores and context, the causal mask not used."""
        return 4.0 * batch * sequence**2 * self.model.heads * self.model.head_dim

    def again(self, modules: Collection[str], batch: int, sequence: int) -> tuple[float, int]:
        """Return the core if it runs again."""
        return self.core(batch, sequence) if "core_attn" in modules else 0.0, 0

    def _width(self, tp: int) -> int:
        """Return the columns of a rank's QKV matrix."""
        model = self.model
        return (model.heads // tp + 2 * max(1, model.kv_heads // tp)) * model.head_dim
