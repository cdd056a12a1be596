"""Attention inside chunks of ``window`` tokens, as in the layers of Llama 4 with rotary positions.

A token meets those before it in its own chunk: s / w chunks have w²/2 pairs each.
"""

from __future__ import annotations

from typing import ClassVar

from sim.model.layers import full


class Kind(full.Kind):
    """Chunked attention."""

    shares: ClassVar[tuple[str, ...]] = ("ulysses", "allgather")
    needs: ClassVar[str] = "window"

    def pairs(self, rows: int) -> float:
        """Return the pairs that the first ``rows`` queries have with keys."""
        chunks, rest = divmod(rows, self.model.window)
        return chunks * super().pairs(self.model.window) + super().pairs(rest)

    def first_key(self, query: int) -> int:
        """Return the earliest key that a query meets."""
        return query - query % self.model.window
