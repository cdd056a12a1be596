"""Communications that move data on shared links; the counterpart of sim.engine.flows."""

from __future__ import annotations

import numpy as np

from sim.engine.compiled.fields import (
    AFTER,
    BEFORE,
    CAPACITY,
    COEFFICIENT,
    FIRST_LOAD,
    FIRST_NODE,
    FIRST_ON,
    FLOW,
    FLOW_END,
    FLOW_LEFT,
    FLOW_PART,
    FLOW_SINCE,
    FLOW_SPEED,
    FLOW_STAMP,
    FLOW_WIDTH,
    FRONTIER,
    GROUP,
    IS_TOUCHED,
    LINK_STAMP,
    LINK_WIDTH,
    LINKS,
    LOAD_LINK,
    LOAD_WIDTH,
    LOADS,
    NODE_FLOW,
    NODE_LINK,
    NODE_WIDTH,
    NODES,
    NOW,
    PART_PLACE,
    PART_WIDTH,
    PARTS,
    SIZE,
    SPEED,
    STAMP,
    TOUCHED,
    TOUCHED_LIST,
    WORK,
    WORK_WIDTH,
    WORKS,
)
from sim.engine.compiled.jit import inner
from sim.machine.network import Cells, Places


@inner
def change(f: Cells, a: int, speed: float, now: float) -> None:
    """Let the flow at cell ``a`` move on at ``speed`` from now."""
    if now != f[a + FLOW_SINCE]:
        left = f[a + FLOW_LEFT] - f[a + FLOW_SPEED] * (now - f[a + FLOW_SINCE])
        f[a + FLOW_LEFT] = left if left > 0.0 else 0.0
    f[a + FLOW_SPEED], f[a + FLOW_SINCE] = speed, now
    f[a + FLOW_END] = now + f[a + FLOW_LEFT] / speed


@inner
def touch_link(i: Places, link: int) -> None:
    """Note that the flows of a link changed."""
    a = i[LINKS] + link * LINK_WIDTH
    if not i[a + IS_TOUCHED]:
        i[a + IS_TOUCHED] = 1
        i[i[TOUCHED_LIST] + i[TOUCHED]] = link
        i[TOUCHED] += 1


@inner
def enter(i: Places, node: int, flow: int, link: int) -> bool:
    """Put a flow on a link, and return whether others are there."""
    head = i[LINKS] + link * LINK_WIDTH + FIRST_ON
    a, after = i[NODES] + node * NODE_WIDTH, i[head]
    i[a + AFTER], i[a + BEFORE], i[a + NODE_FLOW], i[a + NODE_LINK] = after, -1, flow, link
    if after >= 0:
        i[i[NODES] + after * NODE_WIDTH + BEFORE] = node
    i[head] = node
    return after >= 0


@inner
def join(h: Places, i: Places, f: Cells, part: int) -> bool:
    """Start to move the bytes of a part; return whether it has its links, and so its speed."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + h[p + WORK] * WORK_WIDTH
    a = i[FLOW] + h[p + PART_PLACE] * FLOW_WIDTH
    first, last = i[w + FIRST_LOAD], i[w + WORK_WIDTH + FIRST_LOAD]
    f[a + FLOW_LEFT], f[a + FLOW_SPEED], f[a + FLOW_SINCE] = f[w + SIZE], 0.0, f[NOW]
    f[a + FLOW_END], i[a + FLOW_STAMP] = np.inf, 0
    shared = False
    for k in range(first, last):
        link = i[i[LOADS] + k * LOAD_WIDTH + LOAD_LINK]
        shared |= enter(i, h[p + FIRST_NODE] + k - first, h[p + PART_PLACE], link)
    if not shared:
        change(f, a, f[w + SPEED], f[NOW])
        return True
    for k in range(first, last):
        touch_link(i, i[i[LOADS] + k * LOAD_WIDTH + LOAD_LINK])
    return False


@inner
def leave(h: Places, i: Places, part: int) -> bool:
    """Take a flow that has moved all its bytes off its links; return if others use these."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + h[p + WORK] * WORK_WIDTH
    left = False
    for k in range(i[w + WORK_WIDTH + FIRST_LOAD] - i[w + FIRST_LOAD]):
        a = i[NODES] + (h[p + FIRST_NODE] + k) * NODE_WIDTH
        before, after, link = i[a + BEFORE], i[a + AFTER], i[a + NODE_LINK]
        head = i[LINKS] + link * LINK_WIDTH + FIRST_ON
        if before >= 0:
            i[i[NODES] + before * NODE_WIDTH + AFTER] = after
        else:
            i[head] = after
        if after >= 0:
            i[i[NODES] + after * NODE_WIDTH + BEFORE] = before
        if i[head] >= 0:
            touch_link(i, link)
            left = True
    return left


@inner
def reach(h: Places, i: Places, part: int, ahead: int) -> int:
    """Put the links of a part that were not seen yet into the frontier; return its new length."""
    p = i[PARTS] + part * PART_WIDTH
    w = i[WORKS] + h[p + WORK] * WORK_WIDTH
    for k in range(i[w + FIRST_LOAD], i[w + WORK_WIDTH + FIRST_LOAD]):
        link = i[i[LOADS] + k * LOAD_WIDTH + LOAD_LINK]
        a = i[LINKS] + link * LINK_WIDTH
        if i[a + LINK_STAMP] != i[STAMP]:
            i[a + LINK_STAMP] = i[STAMP]
            i[i[FRONTIER] + ahead] = link
            ahead += 1
    return ahead


@inner
def sort(i: Places, begin: int, n: int) -> None:
    """Sort ``n`` cells in ascending order, by Shell's method with Ciura's gaps."""
    for gap in (701, 301, 132, 57, 23, 10, 4, 1):
        for k in range(gap, n):
            value, at = i[begin + k], k
            while at >= gap and i[begin + at - gap] > value:
                i[begin + at] = i[begin + at - gap]
                at -= gap
            i[begin + at] = value


@inner
def group(h: Places, i: Places, link: int) -> int:
    """List the flows that links tie to this one, in order of part; return how many there are."""
    stamp, flows, ahead = i[STAMP], 0, 1
    i[i[FRONTIER]] = link
    i[i[LINKS] + link * LINK_WIDTH + LINK_STAMP] = stamp
    while ahead:
        ahead -= 1
        node = i[i[LINKS] + i[i[FRONTIER] + ahead] * LINK_WIDTH + FIRST_ON]
        while node >= 0:
            a = i[NODES] + node * NODE_WIDTH
            flow = i[FLOW] + i[a + NODE_FLOW] * FLOW_WIDTH
            if i[flow + FLOW_STAMP] != stamp:
                i[flow + FLOW_STAMP] = stamp
                i[i[GROUP] + flows] = i[flow + FLOW_PART]
                flows += 1
                ahead = reach(h, i, i[flow + FLOW_PART], ahead)
            node = i[a + AFTER]
    sort(i, i[GROUP], flows)
    return flows


@inner
def single(h: Places, i: Places, f: Cells, part: int) -> float:
    """Return the speed of a flow that has its links for itself."""
    w = i[WORKS] + h[i[PARTS] + part * PART_WIDTH + WORK] * WORK_WIDTH
    lowest = np.inf
    for k in range(i[w + FIRST_LOAD], i[w + WORK_WIDTH + FIRST_LOAD]):
        a = i[LOADS] + k * LOAD_WIDTH
        if f[a + COEFFICIENT] > 0.0:
            link = i[LINKS] + i[a + LOAD_LINK] * LINK_WIDTH
            lowest = min(lowest, f[link + CAPACITY] / f[a + COEFFICIENT])
    return lowest
