"""Finds which recorded operations of one pipeline worker wait for others of the same worker.

This is the dependency model of "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI '25), as in its published code (ByteDance-Seed/StragglerAnalysis). Operations of one
stream run in recorded order. A compute waits for what it received, a send for what it sends, and
what follows the last compute is one chain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from schedules.input_error import InputError

FORWARD, BACKWARD = "forward-compute", "backward-compute"
GATHER, SCATTER = "params-all-gather", "grads-reduce-scatter"
SEPARATE = "separate-grads-all-reduce"
EMBEDDING, CLIP = "embedding-grads-all-reduce", "optimizer-clip-main-grad"
CHAIN = ("gc", "layernorm-grads-all-reduce", EMBEDDING)
COMPUTE = (FORWARD, BACKWARD, "gc", "optimizer")
P2P = ("forward-send", "forward-recv", "backward-send", "backward-recv")
TYPES = (*COMPUTE, *P2P, GATHER, SCATTER, SEPARATE, *CHAIN[1:], CLIP)

STREAMS = dict.fromkeys(COMPUTE, "compute") | {GATHER: "dp", SCATTER: "dp"}
"""Streams that several types share; every other type has its own."""
EARLY = 5e-5
"""Seconds by which a p2p may begin before, or end after, a compute and still not belong to it."""


class RecordedOp(NamedTuple):
    """One recorded operation."""

    op: int  # its index in the graph
    type: str
    start: float
    end: float
    chunk: int  # model chunk of this worker, -1 for p2p
    stage: int  # counted over all chunks, -1 for p2p


class Worker(NamedTuple):
    """One worker's part of one training step."""

    waits: list[tuple[int, int]]  # (later, earlier) op
    p2p: dict[str, list[int]]  # the ops of each type that have a peer, in order


def worker(rows: Sequence[RecordedOp], stages: int) -> Worker:
    """Return the waits of one worker, whose rows are in order of their start.

    ``stages`` counts all chunks of the pipeline. Raises InputError when sends and receives do not
    match the computes.
    """
    of: defaultdict[str, list[RecordedOp]] = defaultdict(list)
    for row in rows:
        of[row.type].append(row)
    computes = [row for row in rows if row.type in (FORWARD, BACKWARD)]
    if not computes:
        raise InputError("there is a worker without forward and backward computes")
    waits = [*_first_backward(computes, of), *_gathers(of), *_chain(computes, of)]
    p2p: dict[str, list[int]] = {}
    for kind in P2P:
        matched = list(_matched(kind, of[kind], of[f"{kind.split('-')[0]}-compute"], stages))
        waits += [wait for row, k, of_type in matched for wait in _p2p_waits(kind, row, k, of_type)]
        p2p[kind] = [row.op for row, k, of_type in matched if not _at_end(kind, of_type[k], stages)]
    return Worker(waits, p2p)


def _at_end(kind: str, compute: RecordedOp, stages: int) -> bool:
    """Return whether there is no stage to send to or receive from."""
    up = kind in ("forward-send", "backward-recv")
    return compute.stage == (stages - 1 if up else 0)


def _matched(
    kind: str, rows: list[RecordedOp], computes: list[RecordedOp], stages: int
) -> Iterator[tuple[RecordedOp, int, list[RecordedOp]]]:
    """Yield each send or receive, the place of its compute in its direction, and those computes.

    The profiler also records calls that launched nothing. They lie at the ends of a step (they
    begin after the last compute, or end before the first), or belong to the first or last chunk of
    all.
    """
    if not rows:
        return
    if kind.endswith("recv"):
        last = max((row.start for row in computes), default=math.inf)
        rows = [row for row in rows if row.start <= last + EARLY]
    else:
        first = min((row.end for row in computes), default=-math.inf)
        rows = [row for row in rows if row.end >= first - EARLY]
    real = [k for k, row in enumerate(computes) if not _at_end(kind, row, stages)]
    if len(rows) == len(computes):
        places = list(range(len(computes)))
    elif len(rows) == len(real):
        places = real
    elif len(rows) + 1 == len(computes) and kind.endswith("recv"):
        places = list(range(1, len(computes)))
    else:
        raise InputError(
            f"there are {len(rows)} {kind} for {len(computes)} computes of a worker, of which "
            f"{len(real)} need one"
        )
    yield from ((row, k, computes) for row, k in zip(rows, places, strict=True))


def _p2p_waits(
    kind: str, row: RecordedOp, k: int, computes: list[RecordedOp]
) -> Iterator[tuple[int, int]]:
    if kind.endswith("send"):
        yield row.op, computes[k].op
        return
    yield computes[k].op, row.op
    if k:
        yield row.op, computes[k - 1].op


def _first_backward(
    computes: list[RecordedOp], of: dict[str, list[RecordedOp]]
) -> Iterator[tuple[int, int]]:
    """Yield waits: the first exchange of gradients is issued before the warm-up's last compute."""
    first = next((k for k, row in enumerate(computes) if row.type == BACKWARD), 0)
    if first >= 2:
        for kind in ("backward-recv", "backward-send"):
            yield from ((row.op, computes[first - 2].op) for row in of[kind][:1])


def _gathers(of: dict[str, list[RecordedOp]]) -> Iterator[tuple[int, int]]:
    """Yield waits: the first forward of a chunk waits for the last of its parameters."""
    gathers = {row.chunk: row for row in of[GATHER]}
    for chunk, gather in gathers.items():
        first = next((row for row in of[FORWARD] if row.chunk == chunk), None)
        if first:
            yield first.op, gather.op


def _chain(
    computes: list[RecordedOp], of: dict[str, list[RecordedOp]]
) -> Iterator[tuple[int, int]]:
    """Yield waits after the last compute; gradients are reduced there, or beside the backwards."""
    last = max(computes, key=lambda row: row.end)
    chain = [row for kind in CHAIN for row in of[kind][:1]]
    beside = bool(of[SEPARATE])
    chain += of[SEPARATE] if beside else of[SCATTER]
    chain += [*of[CLIP], *of["optimizer"]]
    yield from ((later.op, earlier.op) for earlier, later in pairwise([last, *chain]))
    if not beside or not of[SCATTER]:
        return
    head = next((row for row in chain if row.type != "gc"), None)
    if head:
        yield head.op, of[SCATTER][-1].op
    for chunk in {row.chunk for row in of[SCATTER]}:
        scatter = next(row for row in of[SCATTER] if row.chunk == chunk)
        ends = [row for row in of[BACKWARD] if row.chunk == chunk]
        yield from ((scatter.op, row.op) for row in ends[-1:])
