"""The caching allocator against its rules worked by hand, and a naive one that scans addresses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim import run
from sim.graph import Builder, Fixed, Memory
from sim.memory.allocator import Allocator
from sim.memory.reserved import reserved
from sim.timeline import Timeline

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),  # the largest small one
        (MIB + 512, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB - (2 * MIB - 512), 12 * MIB),  # rest above 1 MiB: split off
        (19 * MIB, 20 * MIB, 20 * MIB),
        (11 * MIB + 512, 12 * MIB, 12 * MIB),  # a rest of 1 MiB or less stays in the block
    ],
)
def test_one_block_is_rounded_and_its_segment_is_too(size, block, segment):
    allocator = Allocator()
    allocator.allocate(size)
    assert (allocator.allocated, allocator.reserved) == (block, segment)


def test_segments_do_not_join_and_expandable_ones_grow():
    """Two freed blocks of 12 MiB hold no 16 MiB; in one range of 20 MiB pages they do."""
    for expandable, most in ((False, (12 + 12 + 16) * MIB), (True, 40 * MIB)):
        allocator = Allocator(expandable)
        for block in [allocator.allocate(12 * MIB) for _ in range(2)]:
            allocator.free(block)
        allocator.allocate(16 * MIB)
        assert (allocator.allocated, allocator.reserved) == (16 * MIB, most)


def test_the_smallest_block_that_is_large_enough_serves():
    allocator = Allocator()
    for block in [allocator.allocate(size * MIB) for size in (30, 14, 22)]:
        allocator.free(block)
    allocator.allocate(13 * MIB + MIB // 2)
    assert allocator.allocated == 14 * MIB  # 30 or 22 would have been split at 13.5
    allocator.allocate(22 * MIB)
    allocator.allocate(30 * MIB)
    assert allocator.reserved == (30 + 14 + 22) * MIB


def test_a_block_stays_with_its_stream():
    allocator = Allocator()
    allocator.free(allocator.allocate(12 * MIB, "compute"))
    allocator.allocate(12 * MIB, "side")
    assert allocator.reserved == 24 * MIB
    allocator.allocate(12 * MIB, "compute")
    assert allocator.reserved == 24 * MIB


class Naive:
    """Segments as lists of [begin, end, used], every search a scan."""

    def __init__(self):
        self.segments = []

    def allocate(self, size, stream):
        size = -(-size // 512) * 512
        small = size <= MIB
        free = [
            (run[1] - run[0], k, run)
            for k, (of, runs) in enumerate(self.segments)
            for run in runs
            if of == (stream, small) and not run[2] and run[1] - run[0] >= size
        ]
        if free:
            _, k, run = min(free, key=lambda f: (f[0], f[1], f[2][0]))
        else:
            large = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
            run, k = [0, 2 * MIB if small else large, False], len(self.segments)
            self.segments.append(((stream, small), [run]))
        rest = run[1] - run[0] - size
        if rest > (511 if small else MIB):
            runs = self.segments[k][1]
            runs.insert(runs.index(run) + 1, [run[0] + size, run[1], False])
            run[1] = run[0] + size
        run[2] = True
        return k, run

    def free(self, where):
        k, run = where
        run[2] = False
        runs = self.segments[k][1]
        i = runs.index(run)
        for j in (i + 1, i - 1):
            if 0 <= j < len(runs) and not runs[j][2]:
                other = runs.pop(j)
                run[0], run[1] = min(run[0], other[0]), max(run[1], other[1])
                i = runs.index(run)

    def totals(self):
        runs = [run for _, of in self.segments for run in of]
        return sum(b - a for a, b, used in runs if used), sum(b - a for a, b, _ in runs)


SIZES = st.sampled_from([1, 700, 300 * KIB, MIB, 3 * MIB, 9 * MIB, 12 * MIB + 5, 50 * MIB])
STEPS = st.lists(st.tuples(SIZES | st.none(), st.sampled_from("ab"), st.integers(0, 9)))


@given(STEPS)
def test_it_does_what_a_scan_of_all_addresses_would(steps):
    mine, naive, live = Allocator(), Naive(), []
    for size, stream, which in steps:
        if size:
            live.append((mine.allocate(size, stream), naive.allocate(size, stream)))
        elif live:
            a, b = live.pop(which % len(live))
            mine.free(a)
            naive.free(b)
        assert (mine.allocated, mine.reserved) == naive.totals()


@given(STEPS, st.booleans())
def test_nothing_is_in_use_beyond_what_is_reserved_or_after_the_end(steps, expandable):
    allocator, live = Allocator(expandable), []
    for size, stream, which in steps:
        if size:
            live.append(allocator.allocate(size, stream))
        elif live:
            allocator.free(live.pop(which % len(live)))
        assert allocator.allocated == sum(block.size for block in live) <= allocator.reserved
    for block in live:
        allocator.free(block)
    held, count = allocator.reserved, sum(map(len, allocator._free.values()))
    assert allocator.allocated == 0
    assert sum(b[0] for of in allocator._free.values() for b in of) == held
    assert not expandable or count <= 4  # two streams, two pools: one run each


def _timeline():
    """12 MiB for op a, 12 for b beside it, then 16 for c."""
    b = Builder()
    for name, stream, size in (("a", "x", 12), ("b", "y", 12), ("c", "x", 16)):
        rows = [Memory("m", size * MIB, "start"), Memory("m", -float(size * MIB), "end")]
        b.add(name, 0, stream, Fixed(2.0), memory=rows)
    graph = replace(b.graph(), persistent={0: {"weights": 5.0 * MIB, "optimizer": 0.0}})
    return Timeline(graph, np.array([0.0, 0.0, 2.0]), np.array([2.0, 2.0, 4.0]))


def test_a_timeline_is_walked_in_its_order_of_time():
    (found,) = reserved(_timeline())
    # weights in a segment of 20, whose rest serves a; b has its own, c another
    assert found.reserved_bytes == (20 + 12 + 16) * MIB
    assert found.allocated_bytes == (5 + 12 + 12) * MIB
    assert found.fragmentation == pytest.approx(1 - 29 / 48)
    (small,) = reserved(_timeline(), pieces={(-1, "m"): [1.0, 2.0, 1.0]})
    assert small.reserved_bytes == (20 + 20) * MIB  # rows of three tensors find room


@pytest.mark.slow
def test_a_run_says_what_is_reserved():
    recipe = "validation/recipes/zero_bubble_14.6b_1f1b.toml"
    small = {"training.global_batch": 16}
    plain = run(recipe, small).summary["memory"]
    for allocator in ("caching", "expandable"):
        cached = run(recipe, {**small, "simulation.allocator": allocator}).summary["memory"]
        for without, entry in zip(plain, cached, strict=True):
            assert "reserved_bytes" not in without
            assert entry["reserved_bytes"] >= entry["allocated_bytes"] >= entry["peak_bytes"] - 1
            assert entry["reserved_bytes"] < 1.2 * entry["peak_bytes"]
            assert 0 <= entry["fragmentation"] < 0.2
