"""PyTorch's caching allocator: the blocks and segments that it hands out for a list of sizes.

The rules and constants are those of c10/cuda/CUDACachingAllocator.cpp (``round_size``,
``get_allocation_size``, ``get_free_block``, ``should_split``, ``free_block``). Options that are off
by default (``max_split_size_mb``, ``roundup_power2_divisions``, garbage collection) are left out.
So is what only happens when the device is full: wholly free cached segments are then given back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from dataclasses import dataclass, field

MIN_BLOCK = 512  # kMinBlockSize: every size is rounded up to a multiple
SMALL = 2**20  # kSmallSize: up to here from the small pool
SMALL_SEGMENT = 2 * 2**20  # kSmallBuffer
LARGE_SEGMENT = 20 * 2**20  # kLargeBuffer
MIN_LARGE = 10 * 2**20  # kMinLargeAlloc: below it from a segment of kLargeBuffer
ROUND_LARGE = 2 * 2**20  # kRoundLarge: a segment of its own is a multiple of it


@dataclass(eq=False, slots=True)
class Block:
    """A range of bytes of one segment, in use or free, with its neighbours."""

    size: int
    pool: tuple[str, bool]  # stream, and whether small
    number: int  # in order of addresses: breaks ties between blocks of one size
    before: Block | None = None
    after: Block | None = None
    used: bool = False


@dataclass
class Allocator:
    """The state of one GPU's allocator; sizes are in bytes.

    >>> allocator = Allocator()
    >>> block = allocator.allocate(3 * 2**20)  # 1 to 10 MiB: from a segment of 20 MiB
    >>> allocator.allocated, allocator.reserved
    (3145728, 20971520)
    >>> allocator.free(block)
    >>> allocator.allocated, allocator.reserved  # cached
    (0, 20971520)
    """

    expandable: bool = False  # PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
    allocated: int = 0  # bytes of blocks in use
    reserved: int = 0  # bytes of segments
    _free: dict[tuple[str, bool], list[tuple[int, int, Block]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _tail: dict[tuple[str, bool], Block] = field(default_factory=dict)  # of expandable segments
    _count: int = 0

    def allocate(self, size: int, stream: str = "") -> Block:
        """Return a block of at least ``size`` bytes for a stream.

        It is cut from the smallest free block that is large enough, else from new memory.
        """
        rounded = max(MIN_BLOCK, -(-size // MIN_BLOCK) * MIN_BLOCK)
        pool = (stream, rounded <= SMALL)
        free = self._free[pool]
        k = bisect_left(free, (rounded, -1))
        block = free.pop(k)[2] if k < len(free) else self._new(rounded, pool)
        self._split(block, rounded)
        block.used = True
        self.allocated += block.size
        return block

    def free(self, block: Block) -> None:
        """Give a block back: it joins free neighbours and stays cached for its stream."""
        assert block.used
        block.used = False
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other and not other.used:
                self._take(other)
                self._join(block, other)
        insort(self._free[block.pool], (block.size, block.number, block))

    def _new(self, size: int, pool: tuple[str, bool]) -> Block:
        """Return a new segment, or the pages by which the pool's expandable segment grows."""
        if not self.expandable:
            return self._segment(_segment_size(size, pool[1]), pool)
        page = SMALL_SEGMENT if pool[1] else LARGE_SEGMENT
        end = self._tail.get(pool)
        there = end.size if end and not end.used else 0
        block = self._segment(-(-(size - there) // page) * page, pool)
        if end:
            block.before, end.after = end, block
        self._tail[pool] = block
        if there and end:
            self._take(end)
            self._join(block, end)
        return block

    def _segment(self, size: int, pool: tuple[str, bool]) -> Block:
        self.reserved += size
        self._count += 1
        return Block(size, pool, self._count)

    def _split(self, block: Block, size: int) -> None:
        """Make the bytes of a block beyond ``size`` a free block, unless they are too few."""
        rest = block.size - size
        fine = block.pool[1] or self.expandable
        if rest < MIN_BLOCK if fine else rest <= SMALL:
            return
        self._count += 1
        other = Block(rest, block.pool, self._count, block, block.after)
        if block.after:
            block.after.before = other
        block.size, block.after = size, other
        if self._tail.get(block.pool) is block:
            self._tail[block.pool] = other
        insort(self._free[block.pool], (other.size, other.number, other))

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, (block.size, block.number))]

    def _join(self, block: Block, other: Block) -> None:
        """Add the bytes of ``other``, a free neighbour, to ``block``."""
        if other is block.before:
            block.before = other.before
            if block.before:
                block.before.after = block
        else:
            block.after = other.after
            if block.after:
                block.after.before = block
            if self._tail.get(block.pool) is other:
                self._tail[block.pool] = block
        block.size += other.size


def _segment_size(size: int, small: bool) -> int:
    """Return the bytes to ask of the device for a block of ``size`` bytes."""
    if small:
        return SMALL_SEGMENT
    return LARGE_SEGMENT if size < MIN_LARGE else -(-size // ROUND_LARGE) * ROUND_LARGE
