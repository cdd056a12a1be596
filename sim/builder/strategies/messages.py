"""Messages between stages: which step sends to which, and in what order streams carry them.

Point to point is rendezvous: a message moves when its send and its receive have both started. So
both ends of a stream must take its messages in one order. There are three policies (``p2p`` in a
recipe):

- ``direction``: a stream per peer and direction, in the sender's order of production;
- ``pair``: a stream per pair of ranks, in the order in which torch lowers a schedule;
- ``batched``: one kernel for the sends and receives posted together, and the rank waits for it
  (Megatron-LM's ``batch_isend_irecv``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schedules import Plan, flat, members
from sim.graph import Bools, Longs


@dataclass(frozen=True, eq=False)
class Steps:
    """All steps of a plan in columns, rank by rank in plan order; members of a pair are steps too.

    A pair that is not serial is one block: what either member needs must be there before both
    start. Their outputs are sent when they are ready, or for a fused pair at its end. Every other
    step is a block of its own. Columns have shape (n,) unless they say otherwise.
    """

    rank: Longs
    index: Longs  # position among its rank's steps
    item: Longs  # item of the plan: the members of a pair, fused or not, share it
    first: Longs  # index of the first step of its block
    last: Longs  # index of the last step of its block
    done: Longs  # index of the step at whose end its output may be sent
    beside: Bools  # the backward of a shared pair: it runs beside the forward
    stage: Longs
    kind: NDArray[np.str_]  # F B I W
    microbatch: Longs
    begins: Longs  # p + 1: steps of rank r are begins[r]:begins[r + 1]
    source: Longs  # the step whose output is this step's input, or -1
    update: Longs  # how many updates of the weights come before the one it contributes to
    gathered: Bools  # whether its stage's sharded parameters are there at its start

    def __len__(self) -> int:
        return len(self.rank)


def columns(plan: Plan, pair: str = "serial", batch: int | None = None) -> Steps:
    """Return the steps of ``plan`` and where each finds its input.

    ``pair`` says how the two of a pair run: ``serial``, ``fused`` or ``shared``. ``batch`` is the
    number of microbatches of one update of the weights, by default all.
    """
    rows = flat(plan)
    steps = [step for row in rows for step in row]
    lengths = [len(row) for row in rows]
    begins = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rank = np.repeat(np.arange(len(plan)), lengths)
    index = np.arange(len(steps)) - begins[rank]
    item, first, last = _blocks(plan)
    beside = (first != index) & (pair == "shared")
    if pair == "serial":
        first = last = index
    stage = np.array([step.stage for step in steps], np.int64)
    kind = np.array([step.kind for step in steps], "U1")
    microbatch = np.array([step.microbatch for step in steps], np.int64)
    return Steps(
        rank,
        index,
        item,
        first,
        last,
        last if pair == "fused" else index,
        beside,
        stage,
        kind,
        microbatch,
        begins,
        _sources(stage, kind, microbatch),
        microbatch // (batch or int(microbatch.max()) + 1),
        np.zeros(len(steps), np.bool_),
    )


def _blocks(plan: Plan) -> tuple[Longs, Longs, Longs]:
    """Return each step's item, and the indices of the first and last step of that item."""
    sizes = [np.array([len(members(item)) for item in items], np.int64) for items in plan]
    item = np.concatenate([np.repeat(np.arange(len(size)), size) for size in sizes])
    ends = [np.repeat(np.cumsum(size), size) for size in sizes]
    last = np.concatenate(ends) - 1
    return item, last + 1 - np.concatenate([np.repeat(size, size) for size in sizes]), last


def _sources(stage: Longs, kind: NDArray[np.str_], microbatch: Longs) -> Longs:
    """Return the step whose output is each step's input, or -1."""
    shape = (int(stage.max()) + 2, int(microbatch.max()) + 1)
    forward, backward = np.full(shape, -1), np.full(shape, -1)
    index = np.arange(len(stage))
    is_forward, is_backward = kind == "F", (kind == "B") | (kind == "I")
    forward[stage[is_forward], microbatch[is_forward]] = index[is_forward]
    backward[stage[is_backward], microbatch[is_backward]] = index[is_backward]
    source = np.full(len(stage), -1)
    later = is_forward & (stage > 0)
    source[later] = forward[stage[later] - 1, microbatch[later]]
    source[is_backward] = backward[stage[is_backward] + 1, microbatch[is_backward]]
    return source


@dataclass(frozen=True, eq=False)
class Messages:
    """One row per message from one rank to another, ordered by the step that sends it."""

    source: Longs  # the step that sends
    target: Longs  # the step that receives
    parcel: Longs  # what a fused pair sends to one rank goes together and has one number


def messages(steps: Steps) -> Messages:
    """Return every input that comes from another rank."""
    target = np.flatnonzero(steps.source >= 0)
    target = target[steps.rank[steps.source[target]] != steps.rank[target]]
    target = target[np.argsort(steps.source[target], kind="stable")]
    source = steps.source[target]
    block = steps.done[source] * len(steps.begins) + steps.rank[source]
    _, parcel = np.unique(block * len(steps.begins) + steps.rank[target], return_inverse=True)
    return Messages(source, target, parcel)


def torch_order(steps: Steps, sent: Messages) -> Longs:
    """Return the place of each message in torch's lowering of the schedule, shape (messages,).

    torch takes one item of each rank in turn, once its input has been sent, and at once emits what
    the item sends (torch 2.13, ``_add_send_recv``).
    """
    message_of = {int(s): k for k, s in enumerate(sent.source)}
    place = np.zeros(len(sent.source), np.int64)
    done = [False] * len(steps)
    at, stop = steps.begins[:-1].tolist(), steps.begins[1:].tolist()
    fresh = np.append((np.diff(steps.item) != 0) | (np.diff(steps.rank) != 0), True)
    behind = (np.flatnonzero(fresh) + 1).repeat(np.diff(np.flatnonzero(fresh), prepend=-1)).tolist()
    source, emitted, progress = steps.source.tolist(), 0, True
    while progress:
        progress = False
        for r in range(len(at)):
            item = range(at[r], behind[at[r]] if at[r] < stop[r] else at[r])
            if not item or any(source[step] >= 0 and not done[source[step]] for step in item):
                continue
            at[r], progress = item.stop, True
            for step in item:
                done[step] = True
                if step in message_of:
                    place[message_of[step]] = emitted
                    emitted += 1
    return place


def iterations(steps: Steps, rank: int, paired: bool) -> Longs:
    """Return the iteration of each step of a rank; batched exchanges come between iterations.

    Every block is one iteration, as in Megatron-LM's 1F1B. With ``paired`` (its interleaved
    schedule) a forward and the backward after it, once warm-up is over, are one iteration.
    """
    kind = steps.kind[steps.begins[rank] : steps.begins[rank + 1]]
    fresh = np.ones(len(kind), np.bool_)
    if paired:
        fresh[1:] = ~((kind[:-1] == "F") & (kind[1:] != "F"))
        if _all_warm_up(steps, rank):
            fresh[_lead(steps, rank) :] = True
    fresh &= (steps.first == steps.index)[steps.begins[rank] : steps.begins[rank + 1]]
    return np.cumsum(fresh) - 1


def _all_warm_up(steps: Steps, rank: int) -> bool:
    """Return whether Megatron-LM counts all forwards of a rank as warm-up.

    None of them then has a backward after it. Each rank warms up with two forwards more than the
    next, as far as it has that many.
    """
    last = len(steps.begins) - 2
    return _lead(steps, rank) < _lead(steps, last) + 2 * (last - rank)


def _lead(steps: Steps, rank: int) -> int:
    """Return how many forwards a rank runs before its first backward."""
    kind = steps.kind[steps.begins[rank] : steps.begins[rank + 1]]
    return int(np.argmax(np.append(kind != "F", True)))


def issue_keys(key: Longs, stream_order: Longs) -> Longs:
    """Return when on its rank each end of a stream's messages is issued, shape (ends,).

    ``key`` is when each end would be issued alone, and ``stream_order`` its place on the stream.
    Issue order is stream order, so an end that is needed late must not hold up one that is needed
    early: each is issued no later than those after it.
    """
    order = np.argsort(stream_order, kind="stable")
    out = np.empty_like(key)
    out[order] = np.minimum.accumulate(key[order][::-1])[::-1]
    return out
