"""Activations in host memory from their forward until their backward, by the copy engines.

When a layer's forward has ended, what it keeps goes to the host. It comes back while the backward
of the next layer runs (ZeRO-Infinity, arXiv:2104.07857; Megatron-LM's ``cpu_offloading``), but not
before all of that microbatch has gone. In a stage that others follow, the last layer comes back
ahead of the gradient that its backward begins with; in the last stage it stays, as its backward is
next. Copies to the host and back have a stream each and share nothing with kernels. Memory is
counted layer by layer here, not stage by stage.

Or whole stages go, as in Megatron-Kwai (core/pipeline_parallel/offload.py and schedules.py): one
copy after the forward, and one that fetches it during the backward before, into one of two buffers
that stay on the GPU. What goes keeps its memory until the step after the next, which waits for it;
so with what is being computed, four stages' shares are there at once. The last stage keeps
everything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from sim.builder.program import Kernel, Program, computes, without
from sim.builder.slots import AHEAD, GONE, SENT
from sim.builder.strategies.draft import ProgramDraft
from sim.builder.template import FROM_HOST, TO_HOST
from sim.graph import Copy

KEPT = "activations"
BUFFERS = 3  # in whole stages: two to fetch into, and one on its way to the host
FREED = {"B": 1.0, "I": 0.5, "W": 0.5}  # share of what a layer keeps, by kind of step


def offloaded(
    programs: Mapping[str, Program], kept: Mapping[int, float], share: float, last: bool
) -> dict[str, Program]:
    """Return the programs of a stage whose layers send a share of what they keep to the host.

    ``kept`` has the bytes that each layer keeps (by number, in order); ``last`` says whether it is
    the last stage.
    """
    moved = list(kept)[:-1] if last else list(kept)
    out = {"F": _sent(programs["F"], moved, kept, share)}
    for kind, part in FREED.items():
        fetched = moved if kind != "W" else []
        out[kind] = _fetched(programs[kind], fetched, kept, part, share)
    return out


def offloaded_whole(
    programs: Mapping[str, Program], kept: Mapping[int, float], share: float
) -> dict[str, Program]:
    """Return the same for a stage, not the last, that is copied at once.

    Its buffers are counted apart.
    """
    whole, layer = share * fsum(kept.values()), max(kept, default=-1)
    draft = ProgramDraft(programs["F"])
    end = max(i for i, item in enumerate(programs["F"]) if computes(item))
    draft.put(("offload", layer), _copy("offload", TO_HOST, whole, layer, "F"), (end,), after=end)
    draft.remember(("offload", layer), KEPT, -whole, "start")
    draft.wait(_first(programs["F"]), GONE)
    out = {"F": draft.finish()}
    for kind, part in FREED.items():
        draft = ProgramDraft(_without(programs[kind]))
        for number, size in kept.items():
            if mine := _positions(programs[kind], number):
                draft.remember(mine[-1], KEPT, -part * (1 - share) * size, "end")
        if kind != "W":
            key = ("fetch", layer)
            copy = _copy("fetch_ahead", FROM_HOST, whole, layer, "I")._replace(ahead=True)
            draft.put(key, copy, (SENT, AHEAD))
            draft.wait(_first(programs[kind]), key, GONE)
        out[kind] = draft.finish()
    return out


def _first(program: Program) -> int:
    """Return the position of the first kernel on the compute stream."""
    return next(i for i, item in enumerate(program) if computes(item))


def _sent(
    forward: Program, moved: Sequence[int], kept: Mapping[int, float], share: float
) -> Program:
    draft = ProgramDraft(_without(forward))
    for layer, size in kept.items():
        first, *_, last = _positions(forward, layer)
        draft.remember(first, KEPT, size, "start")
        if layer in moved:
            key = ("offload", layer)
            copy = _copy("offload", TO_HOST, share * size, layer, "F")
            draft.put(key, copy, (last,), after=last)
            draft.remember(key, KEPT, -share * size, "end")
    return draft.finish()


def _fetched(
    backward: Program,
    moved: Sequence[int],
    kept: Mapping[int, float],
    part: float,
    share: float,
) -> Program:
    """Issue each layer's copy with the backward of the layer after it, after what precedes that."""
    draft = ProgramDraft(_without(backward))
    for layer, size in kept.items():
        mine = _positions(backward, layer)
        if mine:
            draft.remember(mine[-1], KEPT, -part * size, "end")
        if layer in moved:
            key = ("fetch", layer)
            copy = _copy("fetch", FROM_HOST, share * size, layer, "I")
            if layer + 1 in kept:
                behind = _positions(backward, layer + 1)[0]
                needs = (SENT, *backward[behind].needs, *([behind - 1] if behind else []))
                draft.put(key, copy, needs, before=behind)
            else:  # before the input arrives, once the copies of the step before have ended
                draft.put(key, copy._replace(name="fetch_ahead", ahead=True), (SENT,))
            draft.remember(key, KEPT, share * size, "start")
            draft.wait(mine[0], key)
    return draft.finish()


def _without(program: Program) -> Program:
    """Return the program without its memory of the whole stage's activations."""
    return [without(item, KEPT) for item in program]


def _positions(program: Program, layer: int) -> list[int]:
    """Return the positions of a layer's kernels on the compute stream, in order."""
    return [i for i, item in enumerate(program) if computes(item) and item.layer == layer]


def _copy(name: str, stream: str, size: float, layer: int, phase: str) -> Kernel:
    return Kernel(name, Copy(size, stream), phase, layer, stream=stream)
