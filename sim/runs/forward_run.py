"""Runs the forward of a sharded model by itself: fixed seconds per layer, and no machine.

It is small enough to work out by hand, and shows what decides if a gather hides behind kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from schedules.input_error import InputError
from sim.engine import simulate
from sim.graph import Builder, Fixed
from sim.machine.hardware import ideal
from sim.timeline import Timeline

COPIES = "fsdp copy_in"
"""The stream of copy-ins in FSDP, which is one of their own."""


def sharded_forward(
    layers: Sequence[float],
    gather: float,
    *,
    prefetch: int | None = None,
    buffers: int | None = None,
    copy: float = 0.0,
    copy_stream: str = COPIES,
) -> Timeline:
    """Run the forward of sharded layers alone: seconds for each layer and each gather.

    ``layers`` has the seconds of each layer. Before a layer, its parameters are gathered in
    ``gather`` seconds. A gather is issued when the layer ``prefetch + 1`` before its own has ended;
    without ``prefetch`` at once. Gathers write into ``buffers`` buffers in turn, by default as many
    as there are layers. Each begins with a copy of ``copy`` seconds on ``copy_stream``. Raises
    InputError for less than one buffer or a negative prefetch.

    >>> sharded_forward([4, 4, 4], 5, prefetch=0).seconds  # nothing overlaps: 3 (5 + 4)
    27.0
    >>> sharded_forward([4, 4, 4], 5, prefetch=1).seconds  # gathers alone: 3 * 5, and a layer
    19.0
    """
    if (buffers is not None and buffers < 1) or (prefetch is not None and prefetch < 0):
        raise InputError(
            f"buffers must be at least 1 and prefetch at least 0, not {buffers} and {prefetch}"
        )
    builder, kernels = Builder(), list[int]()
    late = len(layers) if prefetch is None else prefetch + 1
    room = len(layers) if buffers is None else buffers
    for j, seconds in enumerate(layers):
        add = partial(builder.add, rank=0, layer=j, stage=j)  # a stage each: pictures part them
        before = [kernels[j - min(late, room)]] if j >= min(late, room) else []
        if copy:
            before = [add("param_copy_in", stream=copy_stream, work=Fixed(copy), waits=before)]
        moved = Fixed(gather, "communication", "dp")
        there = add("param_all_gather", stream="all_gather", work=moved, waits=before, phase="F")
        layer = add("layer", stream="compute", work=Fixed(seconds), waits=[there], phase="F")
        kernels.append(layer)
    graph = builder.graph()
    return simulate(graph, ideal(graph))
