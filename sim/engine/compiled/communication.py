"""How communication runs; the counterpart of sim.engine.communication and sim.engine.rendezvous."""

from __future__ import annotations

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
    MEMBER_SEGMENT,
    MEMBER_WIDTH,
    MEMBERS,
    MISSING,
    MOVES,
    NOW,
    ON_LINKS,
    PART_PLACE,
    PART_SECONDS,
    PART_TURN,
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
def start_rendezvous(i: Places, f: Cells, s: int) -> None:
    """Start a communication that shares nothing and only waits for its peers."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    f[i[BOUNDS] + i[a + SLOT]] = f[NOW]
    part = i[i[ROWS] + i[a + FIRST_ROW]]
    p = i[PARTS] + part * PART_WIDTH
    i[p + MISSING] -= 1
    if i[p + MISSING] == 0:
        i[i[FLOW] + i[p + PART_PLACE] * FLOW_WIDTH + FLOW_PART] = part
        event = i[ENDS] + i[p + PART_PLACE]
        schedule(i, f, event, f[NOW] + f[p + PART_SECONDS], i[p + PART_TURN])


@inner
def begin(i: Places, f: Cells, part: int) -> None:
    """Begin a part whose members are all there: after the latency, its data moves."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + i[p + WORK] * WORK_WIDTH
    i[i[FLOW] + i[p + PART_PLACE] * FLOW_WIDTH + FLOW_PART] = part
    moves = f[NOW] + f[w + LATENCY]
    if i[w + ON_LINKS] or i[p + USES_HBM]:
        schedule(i, f, i[MOVES] + i[p + PART_PLACE], moves, i[p + PART_TURN])
    if not i[w + ON_LINKS]:
        end = moves + f[w + TRANSFER]
        schedule(i, f, i[ENDS] + i[p + PART_PLACE], end, i[p + PART_TURN] + 1)


@inner
def start_communication(i: Places, f: Cells, s: int) -> None:
    """Start segment ``s``: its kernel holds SMs of its rank until all its parts are done."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    f[i[BOUNDS] + i[a + SLOT]] = f[NOW]
    sms = i[a + HOW] >> SMS_SHIFT
    if i[a + HOW] & BESIDE and sms:
        hold(i, i[i[QUEUES] + i[a + QUEUE] * QUEUE_WIDTH + GPU], sms)
    for row in range(i[a + FIRST_ROW], i[a + SEGMENT_WIDTH + FIRST_ROW]):
        part = i[i[ROWS] + row]
        p = i[PARTS] + part * PART_WIDTH
        i[p + MISSING] -= 1
        if i[p + MISSING] == 0:
            begin(i, f, part)


@inner
def take_memory(i: Places, f: Cells, part: int, share: float) -> None:
    """Let the part take this share of memory bandwidth on its members' GPUs; 0 takes none."""
    p = i[PARTS] + part * PART_WIDTH
    for k in range(i[p + FIRST_MEMBER], i[p + PART_WIDTH + FIRST_MEMBER]):
        s = i[i[MEMBERS] + k * MEMBER_WIDTH + MEMBER_SEGMENT]
        a = i[SEGMENTS] + s * SEGMENT_WIDTH
        if i[a + HOW] & BESIDE:
            move(i, f, i[i[QUEUES] + i[a + QUEUE] * QUEUE_WIDTH + GPU], part, share)


@inner
def schedule_flow(i: Places, f: Cells, part: int) -> None:
    """Schedule the end of a flow anew, since it has a new speed."""
    p = i[PARTS] + part * PART_WIDTH
    a = i[FLOW] + i[p + PART_PLACE] * FLOW_WIDTH
    schedule(i, f, i[ENDS] + i[p + PART_PLACE], f[a + FLOW_END], i[p + PART_TURN] + 1)
    if i[p + USES_HBM]:
        w = i[WORKS] + i[p + WORK] * WORK_WIDTH
        take_memory(i, f, part, f[w + WORK_HBM] * f[a + FLOW_SPEED] / f[w + SPEED])


@inner
def move_part(i: Places, f: Cells, part: int) -> None:
    """Let the data of a part begin to move."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + i[p + WORK] * WORK_WIDTH
    if i[w + ON_LINKS]:
        i[FLOWS] += 1
        if join(i, f, part):
            schedule_flow(i, f, part)
        else:
            i[UNSETTLED] = 1
    elif i[p + USES_HBM]:
        take_memory(i, f, part, f[w + WORK_HBM])


@inner
def settle_flow(i: Places, f: Cells, part: int, speed: float) -> None:
    """Give a flow this speed from now on, if that is not its speed already."""
    p = i[PARTS] + part * PART_WIDTH
    a = i[FLOW] + i[p + PART_PLACE] * FLOW_WIDTH
    if speed != f[a + FLOW_SPEED]:
        change(f, a, speed, f[NOW])
        i[SHARED] += 1
        schedule_flow(i, f, part)


@inner
def settle_group(i: Places, f: Cells, link: int) -> None:
    """Share links anew among all flows that links tie to this one; equal speeds stay untouched."""
    n = group(i, link)
    if n == 1:
        settle_flow(i, f, i[i[GROUP]], single(i, f, i[i[GROUP]]))
        return
    fair(i, f, n)
    for k in range(n):
        settle_flow(i, f, i[i[GROUP] + k], f[i[SPEEDS] + k])


@inner
def settle(i: Places, f: Cells) -> None:
    """Give new speeds to links, then to GPUs, when an instant's events have been applied."""
    i[SETTLED] += 1
    i[STAMP] += 1
    for k in range(i[TOUCHED]):
        a = i[LINKS] + i[i[TOUCHED_LIST] + k] * LINK_WIDTH
        i[a + IS_TOUCHED] = 0
        if abs(i[a + LINK_STAMP]) != i[STAMP] and i[a + FIRST_ON] >= 0:
            settle_group(i, f, i[i[TOUCHED_LIST] + k])
    i[TOUCHED] = 0
    settle_gpus(i, f)
    i[UNSETTLED] = 0
