"""Attention of every token to the ``window`` tokens up to its own (Mistral 7B, arXiv:2310.06825).

Of the s²/2 pairs under a causal mask, (s - w)²/2 lie outside the window: s w - w²/2 are left. The
kernel does the work of these, and reads every query, key and value.
"""

from __future__ import annotations

from typing import ClassVar

from sim.model.layers import full


class Kind(full.Kind):
    """Sliding-window attention; Transformer Engine shares it by Ulysses or allgather alone."""

    shares: ClassVar[tuple[str, ...]] = ("ulysses", "allgather")
    needs: ClassVar[str] = "window"

    def pairs(self, rows: int) -> float:
        """Return the pairs that the first ``rows`` queries have with keys."""
        return super().pairs(rows) - super().pairs(max(rows - self.model.window, 0))

    def first_key(self, query: int) -> int:
        """Return the earliest key that a query meets."""
        return max(0, query + 1 - self.model.window)
