"""Gated delta net (Yang et al. 2024, arXiv:2412.06464), as in Qwen3-Next.

``groups`` heads of queries and keys, of width ``state``, serve ``heads`` of values. One linear
gives queries, keys, values, output gate, and for each head a decay and a rate; the first three pass
a causal convolution. In the WY form (section 3.3, and arXiv:2406.06484) a chunk of Q tokens has for
each head, with keys of K and values of V: K Kᵀ (2 Q² K FLOPs), w and u (2 Q² (K + V)), the values
that are new and the state (4 Q K V), and the output (2 Q K V + 2 Q² (K + V)). What inverts a
triangle of Q x Q moves its bytes; its Q³ / 3 FLOPs are left out. flash-linear-attention keeps
queries, keys, values, the inverse, decays and rates; its backward makes w, u and states again.
"""

from __future__ import annotations

from sim.model.recurrence import FP32, Products, Recurrent
from sim.model.sizes import Recurrence


class Kind(Recurrent):
    """A gated delta net's mixer."""

    def columns(self, r: Recurrence) -> int:
        """Return the columns of queries, keys, values, gate, decays and rates."""
        return self.channels(r) + r.heads * r.head_dim + 2 * r.heads

    def channels(self, r: Recurrence) -> int:
        """Return the channels of queries, keys and values."""
        return 2 * r.groups * r.state + r.heads * r.head_dim

    def vectors(self, r: Recurrence) -> int:
        """Return the convolution, and a decay and a bias of each head."""
        return r.convolution * self.channels(r) + 2 * r.heads

    def norms(self, r: Recurrence) -> tuple[int, int]:
        """Return the scales of the norm, one for all heads."""
        return 0, r.head_dim

    def products(self, r: Recurrence, chunk: int) -> tuple[Products, ...]:
        """Return the four kernels of products."""
        h, k, v = r.heads, r.state, r.head_dim
        square, to_key, to_value = (h, chunk, chunk, k), (h, chunk, k, chunk), (h, chunk, v, chunk)
        return (
            Products("chunk_keys", (square,)),
            Products("chunk_wy", (to_key, to_value), again=True),
            Products("chunk_state", ((h, chunk, v, k), (h, k, v, chunk)), again=True),
            Products("chunk_output", ((h, chunk, v, k), square, to_value)),
        )

    def kept(self, r: Recurrence, element: int) -> float:
        """Return the bytes of queries, keys, values, gate, the inverse, decays and rates."""
        wide = self.channels(r) + r.heads * (r.head_dim + r.chunk)
        return element * wide + FP32 * 2 * r.heads
