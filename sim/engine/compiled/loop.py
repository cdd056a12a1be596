"""The compiled event loop; the counterpart of sim.engine.clock and sim.engine.completion."""

from __future__ import annotations

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
    LATE,
    LEFT_PARTS,
    MEMBER_SEGMENT,
    MEMBER_WIDTH,
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
    SEGMENT_TURN,
    SEGMENT_WIDTH,
    SEGMENTS,
    SLOT,
    SMS_SHIFT,
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
def met(i: Places, f: Cells, s: int) -> None:
    """Let a segment have one need less, and start it with the last."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    i[a + NEEDS] -= 1
    if i[a + NEEDS] == 0:
        how = i[a + HOW] & 3
        if how == PLAIN:
            start_plain(i, f, s)
        elif how == CHAIN:
            start_chain(i, f, s)
        elif how == COMMUNICATION:
            start_communication(i, f, s)
        else:
            start_rendezvous(i, f, s)


@inner
def complete(i: Places, f: Cells, s: int) -> None:
    """End a segment: each that waits for it, and the next of its queue, has one need less."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    after = a + SEGMENT_WIDTH
    i[a + LEFT_PARTS] = -1
    i[ENDED] += i[after + SLOT] - i[a + SLOT] - 1
    for k in range(i[a + FIRST_WAITER], i[after + FIRST_WAITER]):
        w = i[i[WAITERS] + k]
        if i[NO_LAGS] or f[i[WAITER_LAGS] + k] == 0.0:
            met(i, f, w)
        else:
            turn = i[i[SEGMENTS] + w * SEGMENT_WIDTH + SEGMENT_TURN]
            schedule(i, f, i[LAGS] + k, f[NOW] + f[i[WAITER_LAGS] + k], turn)
    if not i[after + HOW] & HEADS:
        if i[LAG] == 0 or f[i[LAG] + s + 1] == 0.0:
            met(i, f, s + 1)
        else:
            i[i[QUEUES] + i[a + QUEUE] * QUEUE_WIDTH + CURRENT] = s + 1
            late = f[NOW] + f[i[LAG] + s + 1]
            schedule(i, f, i[LATE] + i[a + QUEUE], late, i[after + SEGMENT_TURN])


@inner
def end_run(i: Places, f: Cells, queue: int) -> None:
    """End what runs on a queue: kernels that nothing can slow, or that share their GPU."""
    s = i[i[QUEUES] + queue * QUEUE_WIDTH + CURRENT]
    if i[i[SEGMENTS] + s * SEGMENT_WIDTH + HOW] & 3 == CHAIN:
        end_chain(i, queue)
    complete(i, f, s)


@inner
def end_member(i: Places, f: Cells, s: int) -> None:
    """Count one part of an op as done; the op ends with its last part."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    i[a + LEFT_PARTS] -= 1
    if i[a + LEFT_PARTS] > 0:
        return
    f[i[BOUNDS] + i[a + SEGMENT_WIDTH + SLOT] - 1] = f[NOW]
    sms = i[a + HOW] >> SMS_SHIFT
    if i[a + HOW] & BESIDE and sms:
        hold(i, i[i[QUEUES] + i[a + QUEUE] * QUEUE_WIDTH + GPU], -sms)
    complete(i, f, s)


@inner
def end_part(i: Places, f: Cells, part: int) -> None:
    """End a part: its members end with it, or behind it."""
    p = i[PARTS] + part * PART_WIDTH
    if i[i[WORKS] + i[p + WORK] * WORK_WIDTH + ON_LINKS] and leave(i, part):
        i[UNSETTLED] = 1
    if i[p + USES_HBM]:
        take_memory(i, f, part, 0.0)
    for k in range(i[p + FIRST_MEMBER], i[p + PART_WIDTH + FIRST_MEMBER]):
        m = i[MEMBERS] + k * MEMBER_WIDTH
        s = i[m + MEMBER_SEGMENT]
        if f[m + TAIL] == 0.0:
            end_member(i, f, s)
        else:
            turn = i[i[SEGMENTS] + s * SEGMENT_WIDTH + SEGMENT_TURN]
            schedule(i, f, i[TAILS] + k, f[NOW] + f[m + TAIL], turn)


@inner
def happen(i: Places, f: Cells, event: int) -> None:
    """Apply an event."""
    if event < i[LATE]:
        end_run(i, f, event)
    elif event < i[MOVES]:
        met(i, f, i[i[QUEUES] + (event - i[LATE]) * QUEUE_WIDTH + CURRENT])
    elif event < i[ENDS]:
        move_part(i, f, i[i[FLOW] + (event - i[MOVES]) * FLOW_WIDTH + FLOW_PART])
    elif event < i[TAILS]:
        end_part(i, f, i[i[FLOW] + (event - i[ENDS]) * FLOW_WIDTH + FLOW_PART])
    elif event < i[LAGS]:
        end_member(i, f, i[i[MEMBERS] + (event - i[TAILS]) * MEMBER_WIDTH + MEMBER_SEGMENT])
    else:
        met(i, f, i[i[WAITERS] + event - i[LAGS]])


@entry
def advance(i: Places, f: Cells, most: int) -> bool:
    """Apply at most so many events, and return whether any are left."""
    for _ in range(most):
        if i[EVENTS] == 0:
            return False
        happen(i, f, pop(i, f))
        if i[UNSETTLED] and (i[EVENTS] == 0 or f[i[HEAP] + TIME] > f[NOW]):
            settle(i, f)
    return True
