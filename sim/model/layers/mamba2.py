"""Mamba-2 (state space duality, Dao and Gu 2024, arXiv:2405.21060, section 6).

One linear gives gate z, input x, B, C of each group, and a step per head; x, B and C pass a causal
convolution. With chunks of Q tokens, states of N and heads of P, each chunk has C Bᵀ of each group
(2 Q² N FLOPs), and for each head its product with x (2 Q² P), the chunk's state (2 Q N P) and what
comes from the state before (2 Q N P). mamba_ssm keeps the linear's output and the scan's; its
backward makes states and C Bᵀ again (ops/triton/ssd_combined.py).
"""

from __future__ import annotations

from sim.model.recurrence import Products, Recurrent
from sim.model.sizes import Recurrence


class Kind(Recurrent):
    """A Mamba-2 mixer."""

    def columns(self, r: Recurrence) -> int:
        """Return the columns of z, x, B, C and the steps."""
        return r.heads * r.head_dim + self.channels(r) + r.heads

    def channels(self, r: Recurrence) -> int:
        """Return the channels of x, B and C."""
        return r.heads * r.head_dim + 2 * r.groups * r.state

    def vectors(self, r: Recurrence) -> int:
        """Return the convolution with its bias, and A, D and the step's bias of each head."""
        return (r.convolution + 1) * self.channels(r) + 3 * r.heads

    def norms(self, r: Recurrence) -> tuple[int, int]:
        """Return the scales of the norm, which is over each group."""
        return r.heads * r.head_dim, 0

    def products(self, r: Recurrence, chunk: int) -> tuple[Products, ...]:
        """Return chunk states, C Bᵀ, and the chunk scan, one kernel each."""
        n, p = r.state, r.head_dim
        return (
            Products("chunk_state", ((r.heads, p, n, chunk),), again=True),
            Products("chunk_scores", ((r.groups, chunk, chunk, n),), again=True),
            Products("chunk_scan", ((r.heads, chunk, p, chunk), (r.heads, chunk, p, n))),
        )

    def kept(self, r: Recurrence, element: int) -> float:
        """Return the bytes of z and the steps."""
        return element * (r.heads * r.head_dim + r.heads)
