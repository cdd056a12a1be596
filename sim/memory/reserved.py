"""What PyTorch's caching allocator reserves for a timeline, and how much of it is fragments.

A row of a timeline's memory table is all that an op allocates or frees, not one tensor: the
activations of a stage are one row. ``pieces`` says which tensors make up the rows of a category. A
row without pieces counts as one tensor, and so asks for a larger block than in reality. Persistent
memory comes first, one block per category. All blocks belong to the compute stream and are handed
out at the times of the GPU; a host that runs ahead needs more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from sim.memory.allocator import Allocator, Block
from sim.memory.curve import Changes, changes
from sim.timeline import Timeline

Pieces = Mapping[tuple[int, str], Sequence[float]]
"""By stage and category: the bytes of the tensors in one row, of which the last is freed first."""


Key = tuple[str, int, int, int]  # category, stage, microbatch, step


@dataclass(frozen=True)
class Reserved:
    """What the allocator of one rank holds."""

    rank: int
    allocated_bytes: int  # the most in blocks in use, each rounded up
    reserved_bytes: int  # in segments at the end: they only grow
    fragmentation: float  # of what is reserved in the end, the share never in use at once


def reserved(
    timeline: Timeline, expandable: bool = False, pieces: Pieces | None = None
) -> list[Reserved]:
    """Return what the allocator of every simulated rank holds at the timeline's end, by rank.

    ``expandable`` is PyTorch's option expandable_segments; ``pieces`` has the tensors of rows.
    """
    found = []
    for rank, rows in changes(timeline):
        walk = _Walk(Allocator(expandable), pieces or {})
        for size in filter(None, timeline.graph.persistent.get(rank, {}).values()):
            walk.take(("", -1, -1, -1), size)
        walk.all(timeline, rows)
        most, held = walk.most, walk.allocator.reserved
        found.append(Reserved(rank, most, held, 1 - most / held if held else 0.0))
    return found


class _Walk:
    """One rank's rows in order of time, and the blocks that they have allocated so far."""

    def __init__(self, allocator: Allocator, pieces: Pieces) -> None:
        self.allocator, self.pieces, self.most = allocator, pieces, 0
        self._blocks: dict[Key, list[tuple[float, Block]]] = {}
        self._given: dict[Key, float] = defaultdict(float)

    def all(self, timeline: Timeline, rows: Changes) -> None:
        """Allocate and free every row."""
        graph = timeline.graph
        names = [graph.categories[k] for k in rows.category.tolist()]
        columns = (graph.stage, graph.microbatch, graph.step)
        of_op = (column[rows.op].tolist() for column in columns)
        for size, *key in zip(rows.bytes.tolist(), names, *of_op, strict=True):
            if size > 0:
                self.take(tuple(key), size)
            else:
                self.give(tuple(key), -size)

    def take(self, key: Key, size: float) -> None:
        """Allocate a row, tensor by tensor."""
        tensors = self.pieces.get((key[1], key[0]), (size,))
        scale = size / fsum(tensors)
        blocks = self._blocks.setdefault(key, [])
        for each in tensors:
            blocks.append((each * scale, self.allocator.allocate(round(each * scale))))
        self.most = max(self.most, self.allocator.allocated)

    def give(self, key: Key, size: float) -> None:
        """Free the tensors that a row gives back, the last first.

        A tensor is freed once all of its bytes have been given back. If nothing is allocated under
        ``key``, the oldest row of the category is freed instead.
        """
        if not self._blocks.get(key):
            key = next((k for k, of in self._blocks.items() if k[0] == key[0] and of), key)
        blocks = self._blocks.get(key, [])
        self._given[key] += size
        while blocks and self._given[key] >= blocks[-1][0] * (1 - 1e-9):
            bytes_, block = blocks.pop()
            self._given[key] -= bytes_
            self.allocator.free(block)
        if not blocks:
            self._blocks.pop(key, None)
            self._given.pop(key, None)
