"""The compiled event loop; the counterpart of sim.engine.clock and sim.engine.completion."""

from __future__ import annotations

from sim.engine.compiled.cells import number
from sim.engine.compiled.chains import end_chain, start_chain, start_plain
from sim.engine.compiled.communication import (
    move_part,
    settle,
    start_communication,
    start_rendezvous,
    take_memory,
)
from sim.engine.compiled.fields import (
    BESIDE,
    BOUNDS,
    CURRENT,
    ENDED,
    ENDS,
    EVENTS,
    FIRST_MEMBER,
    FIRST_WAITER,
    FLOW,
    FLOW_PART,
    FLOW_WIDTH,
    GPU,
    HEADS,
    HEAP,
    HOW,
    LAG,
    LAGS,
    LAST_OP,
    LATE,
    LEFT_PARTS,
    MEMBERS,
    MOVES,
    NEEDS,
    NO_LAGS,
    NOW,
    ON_LINKS,
    PART_WIDTH,
    PARTS,
    QUEUE,
    QUEUE_WIDTH,
    QUEUES,
    SEGMENT_WIDTH,
    SEGMENTS,
    SLOT,
    SMS_SHIFT,
    STEP,
    TAIL,
    TAILS,
    TIME,
    UNSETTLED,
    USES_HBM,
    WAITER_LAGS,
    WAITERS,
    WORK,
    WORK_WIDTH,
    WORKS,
)
from sim.engine.compiled.flows import leave
from sim.engine.compiled.gpus import hold
from sim.engine.compiled.heap import pop, schedule
from sim.engine.compiled.jit import entry, inner
from sim.engine.uses import CHAIN, COMMUNICATION, PLAIN
from sim.machine.network import Cells, Places


@inner
def met(h: Places, i: Places, f: Cells, s: int) -> None:
    """Let a segment have one need less, and start it with the last."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    h[a + NEEDS] -= 1
    if h[a + NEEDS] == 0:
        how = h[a + HOW] & 3
        if how == PLAIN:
            start_plain(h, i, f, s)
        elif how == CHAIN:
            start_chain(h, i, f, s)
        elif how == COMMUNICATION:
            start_communication(h, i, f, s)
        else:
            start_rendezvous(h, i, f, s)


@inner
def complete(h: Places, i: Places, f: Cells, s: int) -> None:
    """End a segment: each that waits for it, and the next of its queue, has one need less."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    after = a + SEGMENT_WIDTH
    h[a + LEFT_PARTS] = -1
    i[ENDED] += h[after + SLOT] - h[a + SLOT] - 1
    for k in range(h[a + FIRST_WAITER], h[after + FIRST_WAITER]):
        w = number(h, i[WAITERS] + k)
        if i[NO_LAGS] or f[i[WAITER_LAGS] + k] == 0.0:
            met(h, i, f, w)
        else:
            turn = i[STEP] * h[i[SEGMENTS] + w * SEGMENT_WIDTH + LAST_OP]
            schedule(i, f, i[LAGS] + k, f[NOW] + f[i[WAITER_LAGS] + k], turn)
    if not h[after + HOW] & HEADS:
        if i[LAG] == 0 or f[i[LAG] + s + 1] == 0.0:
            met(h, i, f, s + 1)
        else:
            i[i[QUEUES] + h[a + QUEUE] * QUEUE_WIDTH + CURRENT] = s + 1
            late = f[NOW] + f[i[LAG] + s + 1]
            schedule(i, f, i[LATE] + h[a + QUEUE], late, i[STEP] * h[after + LAST_OP])


@inner
def end_run(h: Places, i: Places, f: Cells, queue: int) -> None:
    """End what runs on a queue: kernels that nothing can slow, or that share their GPU."""
    s = i[i[QUEUES] + queue * QUEUE_WIDTH + CURRENT]
    if h[i[SEGMENTS] + s * SEGMENT_WIDTH + HOW] & 3 == CHAIN:
        end_chain(i, queue)
    complete(h, i, f, s)


@inner
def end_member(h: Places, i: Places, f: Cells, s: int) -> None:
    """Count one part of an op as done; the op ends with its last part."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    h[a + LEFT_PARTS] -= 1
    if h[a + LEFT_PARTS] > 0:
        return
    f[i[BOUNDS] + h[a + SEGMENT_WIDTH + SLOT] - 1] = f[NOW]
    sms = number(h, a + HOW) >> SMS_SHIFT
    if h[a + HOW] & BESIDE and sms:
        hold(i, i[i[QUEUES] + h[a + QUEUE] * QUEUE_WIDTH + GPU], -sms)
    complete(h, i, f, s)


@inner
def end_part(h: Places, i: Places, f: Cells, part: int) -> None:
    """End a part: its members end with it, or behind it."""
    p = i[PARTS] + part * PART_WIDTH
    if i[i[WORKS] + h[p + WORK] * WORK_WIDTH + ON_LINKS] and leave(h, i, part):
        i[UNSETTLED] = 1
    if h[p + USES_HBM]:
        take_memory(h, i, f, part, 0.0)
    for k in range(h[p + FIRST_MEMBER], h[p + PART_WIDTH + FIRST_MEMBER]):
        s = number(h, i[MEMBERS] + k)
        if i[TAIL] == 0 or f[i[TAIL] + k] == 0.0:
            end_member(h, i, f, s)
        else:
            turn = i[STEP] * h[i[SEGMENTS] + s * SEGMENT_WIDTH + LAST_OP]
            schedule(i, f, i[TAILS] + k, f[NOW] + f[i[TAIL] + k], turn)


@inner
def happen(h: Places, i: Places, f: Cells, event: int) -> None:
    """Apply an event."""
    if event < i[LATE]:
        end_run(h, i, f, event)
    elif event < i[MOVES]:
        met(h, i, f, i[i[QUEUES] + (event - i[LATE]) * QUEUE_WIDTH + CURRENT])
    elif event < i[ENDS]:
        move_part(h, i, f, i[i[FLOW] + (event - i[MOVES]) * FLOW_WIDTH + FLOW_PART])
    elif event < i[TAILS]:
        end_part(h, i, f, i[i[FLOW] + (event - i[ENDS]) * FLOW_WIDTH + FLOW_PART])
    elif event < i[LAGS]:
        end_member(h, i, f, number(h, i[MEMBERS] + event - i[TAILS]))
    else:
        met(h, i, f, number(h, i[WAITERS] + event - i[LAGS]))


@entry
def advance(h: Places, i: Places, f: Cells, most: int) -> bool:
    """Apply at most so many events, and return whether any are left."""
    for _ in range(most):
        if i[EVENTS] == 0:
            return False
        happen(h, i, f, pop(i, f))
        if i[UNSETTLED] and (i[EVENTS] == 0 or f[i[HEAP] + TIME] > f[NOW]):
            settle(h, i, f)
    return True
