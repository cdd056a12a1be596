"""How communication runs; the counterpart of sim.engine.communication and sim.engine.rendezvous."""

from __future__ import annotations

from sim.engine.compiled.cells import number, part_turn
from sim.engine.compiled.chains import settle_gpus
from sim.engine.compiled.fair import fair
from sim.engine.compiled.fields import (
    BESIDE,
    BOUNDS,
    ENDS,
    FIRST_MEMBER,
    FIRST_ON,
    FIRST_ROW,
    FLOW,
    FLOW_END,
    FLOW_PART,
    FLOW_SPEED,
    FLOW_WIDTH,
    FLOWS,
    GPU,
    GROUP,
    HOW,
    IS_TOUCHED,
    LATENCY,
    LINK_STAMP,
    LINK_WIDTH,
    LINKS,
    MEMBERS,
    MISSING,
    MOVES,
    NOW,
    ON_LINKS,
    PART_PLACE,
    PART_WIDTH,
    PARTS,
    QUEUE,
    QUEUE_WIDTH,
    QUEUES,
    ROWS,
    SEGMENT_WIDTH,
    SEGMENTS,
    SETTLED,
    SHARED,
    SLOT,
    SMS_SHIFT,
    SPEED,
    SPEEDS,
    STAMP,
    TOUCHED,
    TOUCHED_LIST,
    TRANSFER,
    UNSETTLED,
    USES_HBM,
    WORK,
    WORK_HBM,
    WORK_WIDTH,
    WORKS,
)
from sim.engine.compiled.flows import change, group, join, single
from sim.engine.compiled.gpus import hold, move
from sim.engine.compiled.heap import schedule
from sim.engine.compiled.jit import inner
from sim.machine.network import Cells, Places


@inner
def start_rendezvous(h: Places, i: Places, f: Cells, s: int) -> None:
    """Start a communication that shares nothing and only waits for its peers."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    f[i[BOUNDS] + h[a + SLOT]] = f[NOW]
    part = number(h, i[ROWS] + h[a + FIRST_ROW])
    p = i[PARTS] + part * PART_WIDTH
    h[p + MISSING] -= 1
    if h[p + MISSING] == 0:
        i[i[FLOW] + h[p + PART_PLACE] * FLOW_WIDTH + FLOW_PART] = part
        event, w = i[ENDS] + h[p + PART_PLACE], i[WORKS] + h[p + WORK] * WORK_WIDTH
        seconds = f[w + LATENCY] + f[w + TRANSFER]
        schedule(i, f, event, f[NOW] + seconds, part_turn(h, i, p))


@inner
def begin(h: Places, i: Places, f: Cells, part: int) -> None:
    """Begin a part whose members are all there: after the latency, its data moves."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + h[p + WORK] * WORK_WIDTH
    i[i[FLOW] + h[p + PART_PLACE] * FLOW_WIDTH + FLOW_PART] = part
    moves = f[NOW] + f[w + LATENCY]
    if i[w + ON_LINKS] or h[p + USES_HBM]:
        schedule(i, f, i[MOVES] + h[p + PART_PLACE], moves, part_turn(h, i, p))
    if not i[w + ON_LINKS]:
        end = moves + f[w + TRANSFER]
        schedule(i, f, i[ENDS] + h[p + PART_PLACE], end, part_turn(h, i, p) + 1)


@inner
def start_communication(h: Places, i: Places, f: Cells, s: int) -> None:
    """Start segment ``s``: its kernel holds SMs of its rank until all its parts are done."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    f[i[BOUNDS] + h[a + SLOT]] = f[NOW]
    sms = number(h, a + HOW) >> SMS_SHIFT
    if h[a + HOW] & BESIDE and sms:
        hold(i, i[i[QUEUES] + h[a + QUEUE] * QUEUE_WIDTH + GPU], sms)
    for row in range(h[a + FIRST_ROW], h[a + SEGMENT_WIDTH + FIRST_ROW]):
        part = number(h, i[ROWS] + row)
        p = i[PARTS] + part * PART_WIDTH
        h[p + MISSING] -= 1
        if h[p + MISSING] == 0:
            begin(h, i, f, part)


@inner
def take_memory(h: Places, i: Places, f: Cells, part: int, share: float) -> None:
    """Let the part take this share of memory bandwidth on its members' GPUs; 0 takes none."""
    p = i[PARTS] + part * PART_WIDTH
    for k in range(h[p + FIRST_MEMBER], h[p + PART_WIDTH + FIRST_MEMBER]):
        s = number(h, i[MEMBERS] + k)
        a = i[SEGMENTS] + s * SEGMENT_WIDTH
        if h[a + HOW] & BESIDE:
            move(i, f, i[i[QUEUES] + h[a + QUEUE] * QUEUE_WIDTH + GPU], part, share)


@inner
def schedule_flow(h: Places, i: Places, f: Cells, part: int) -> None:
    """Schedule the end of a flow anew, since it has a new speed."""
    p = i[PARTS] + part * PART_WIDTH
    a = i[FLOW] + h[p + PART_PLACE] * FLOW_WIDTH
    schedule(i, f, i[ENDS] + h[p + PART_PLACE], f[a + FLOW_END], part_turn(h, i, p) + 1)
    if h[p + USES_HBM]:
        w = i[WORKS] + h[p + WORK] * WORK_WIDTH
        take_memory(h, i, f, part, f[w + WORK_HBM] * f[a + FLOW_SPEED] / f[w + SPEED])


@inner
def move_part(h: Places, i: Places, f: Cells, part: int) -> None:
    """Let the data of a part begin to move."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + h[p + WORK] * WORK_WIDTH
    if i[w + ON_LINKS]:
        i[FLOWS] += 1
        if join(h, i, f, part):
            schedule_flow(h, i, f, part)
        else:
            i[UNSETTLED] = 1
    elif h[p + USES_HBM]:
        take_memory(h, i, f, part, f[w + WORK_HBM])


@inner
def settle_flow(h: Places, i: Places, f: Cells, part: int, speed: float) -> None:
    """Give a flow this speed from now on, if that is not its speed already."""
    p = i[PARTS] + part * PART_WIDTH
    a = i[FLOW] + h[p + PART_PLACE] * FLOW_WIDTH
    if speed != f[a + FLOW_SPEED]:
        change(f, a, speed, f[NOW])
        i[SHARED] += 1
        schedule_flow(h, i, f, part)


@inner
def settle_group(h: Places, i: Places, f: Cells, link: int) -> None:
    """Share links anew among all flows that links tie to this one; equal speeds stay untouched."""
    n = group(h, i, link)
    if n == 1:
        settle_flow(h, i, f, i[i[GROUP]], single(h, i, f, i[i[GROUP]]))
        return
    fair(h, i, f, n)
    for k in range(n):
        settle_flow(h, i, f, i[i[GROUP] + k], f[i[SPEEDS] + k])


@inner
def settle(h: Places, i: Places, f: Cells) -> None:
    """Give new speeds to links, then to GPUs, when an instant's events have been applied."""
    i[SETTLED] += 1
    i[STAMP] += 1
    for k in range(i[TOUCHED]):
        a = i[LINKS] + i[i[TOUCHED_LIST] + k] * LINK_WIDTH
        i[a + IS_TOUCHED] = 0
        if abs(i[a + LINK_STAMP]) != i[STAMP] and i[a + FIRST_ON] >= 0:
            settle_group(h, i, f, i[i[TOUCHED_LIST] + k])
    i[TOUCHED] = 0
    settle_gpus(h, i, f)
    i[UNSETTLED] = 0
