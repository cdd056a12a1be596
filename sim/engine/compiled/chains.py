"""Kernels on GPUs that they share; the counterpart of sim.engine.kernels and sim.engine.plain."""

from __future__ import annotations

from sim.engine.compiled.cells import number
from sim.engine.compiled.fields import (
    ALONE,
    ARITHMETIC,
    AT,
    BOUNDS,
    CHAINS,
    CURRENT,
    DIRTY,
    DIRTY_LIST,
    FACTORS,
    FIRST_QUEUE,
    FIXED,
    GPU,
    GPU_WIDTH,
    GPUS,
    IS_DIRTY,
    LAST_OP,
    LEFT,
    MEMORY,
    NOW,
    POSITIONS,
    QUEUE,
    QUEUE_WIDTH,
    QUEUES,
    REST,
    RUNNING,
    SEGMENT_WIDTH,
    SEGMENTS,
    SHARE_X,
    SHARE_Y,
    SINCE,
    SLOT,
    SLOWED,
    STEP,
    WORK_WIDTH,
    WORKS,
)
from sim.engine.compiled.gpus import shares, touch
from sim.engine.compiled.heap import schedule
from sim.engine.compiled.jit import inner
from sim.machine.network import Cells, Places


@inner
def seconds(h: Places, i: Places, f: Cells, position: int, x: float, y: float) -> float:
    """Return the seconds of a kernel's work with these shares of SMs and of memory bandwidth."""
    a = i[WORKS] + h[i[POSITIONS] + position] * WORK_WIDTH
    arithmetic, memory = f[a + ARITHMETIC] / x, f[a + MEMORY] / y
    longer = arithmetic if arithmetic > memory else memory
    return (longer + f[a + FIXED]) + f[a + REST]


@inner
def factor(i: Places, f: Cells, position: int) -> float:
    """Return the factor on the seconds of a kernel's work."""
    return f[i[FACTORS] + position] if i[FACTORS] else 1.0


@inner
def follow_alone(h: Places, i: Places, f: Cells, position: int, slot: int, last: int) -> float:
    """Write the ends of kernels that run alone, behind the time in ``slot``; return the last."""
    at, works, bounds, factors = i[POSITIONS] + position, i[WORKS] + ALONE, i[BOUNDS], i[FACTORS]
    end = f[bounds + slot]
    for k in range(last - slot):
        each = f[works + h[at + k] * WORK_WIDTH]
        end += each * f[factors + position + k] if factors else each
        f[bounds + slot + 1 + k] = end
    return end


@inner
def follow(
    h: Places, i: Places, f: Cells, position: int, slot: int, last: int, x: float, y: float
) -> float:
    """Write the ends of kernels behind the time in ``slot``, and return the last of them."""
    if x == 1.0 and y == 1.0:
        return follow_alone(h, i, f, position, slot, last)
    end = f[i[BOUNDS] + slot]
    for k in range(last - slot):
        end += seconds(h, i, f, position + k, x, y) * factor(i, f, position + k)
        f[i[BOUNDS] + slot + 1 + k] = end
    return end


@inner
def start_plain(h: Places, i: Places, f: Cells, s: int) -> None:
    """Start a segment of kernels that nothing can slow."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    slot = number(h, a + SLOT)
    f[i[BOUNDS] + slot] = f[NOW]
    end = follow_alone(h, i, f, slot - s, slot, h[a + SEGMENT_WIDTH + SLOT] - 1)
    i[i[QUEUES] + h[a + QUEUE] * QUEUE_WIDTH + CURRENT] = s
    schedule(i, f, number(h, a + QUEUE), end, i[STEP] * h[a + LAST_OP])


@inner
def start_chain(h: Places, i: Places, f: Cells, s: int) -> None:
    """Start a segment of kernels, beside which communication or other kernels may run."""
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    slot, now = number(h, a + SLOT), f[NOW]
    q = i[QUEUES] + h[a + QUEUE] * QUEUE_WIDTH
    g = i[q + GPU]
    touch(i, g)
    i[i[GPUS] + g * GPU_WIDTH + CHAINS] += 1
    x, y = shares(i, f, g)
    i[q + CURRENT] = i[q + RUNNING] = s
    i[q + AT] = slot - s
    f[q + LEFT], f[q + SINCE], f[q + SHARE_X], f[q + SHARE_Y] = 1.0, now, x, y
    f[i[BOUNDS] + slot] = now
    end = follow(h, i, f, slot - s, slot, h[a + SEGMENT_WIDTH + SLOT] - 1, x, y)
    schedule(i, f, number(h, a + QUEUE), end, i[STEP] * h[a + LAST_OP])


@inner
def end_chain(i: Places, queue: int) -> None:
    """Take the kernels of a queue off their GPU."""
    q = i[QUEUES] + queue * QUEUE_WIDTH
    i[q + RUNNING] = -1
    i[i[GPUS] + i[q + GPU] * GPU_WIDTH + CHAINS] -= 1
    touch(i, i[q + GPU])


@inner
def running_slot(i: Places, f: Cells, low: int, high: int) -> int:
    """Return the first of the ascending bounds ``low:high`` that lies behind now, or ``high``."""
    bounds, now = i[BOUNDS], f[NOW]
    while low < high:
        middle = (low + high) >> 1
        if now < f[bounds + middle]:
            high = middle
        else:
            low = middle + 1
    return low


@inner
def advance(i: Places, f: Cells, q: int, position: int, slot: int, each: float) -> float:
    """Return the share of the running kernel that is still to run; a whole one took ``each``."""
    if position != i[q + AT]:
        i[q + AT] = position
        f[q + LEFT], f[q + SINCE] = 1.0, f[i[BOUNDS] + slot - 1]
    left = f[q + LEFT] - (f[NOW] - f[q + SINCE]) / each
    f[q + LEFT] = left if left > 0.0 else 0.0
    f[q + SINCE] = f[NOW]
    return f[q + LEFT]


@inner
def change_running(h: Places, i: Places, f: Cells, queue: int, x: float, y: float) -> None:
    """Give the kernels of a queue these shares: move the end of the running one and of the rest."""
    q = i[QUEUES] + queue * QUEUE_WIDTH
    s, old_x, old_y = i[q + RUNNING], f[q + SHARE_X], f[q + SHARE_Y]
    f[q + SHARE_X], f[q + SHARE_Y] = x, y
    a = i[SEGMENTS] + s * SEGMENT_WIDTH
    end = h[a + SEGMENT_WIDTH + SLOT] - 1
    slot = running_slot(i, f, h[a + SLOT] + 1, end + 1)
    if slot > end:
        return  # it ends at this very instant
    last, position = f[i[BOUNDS] + end], slot - s - 1
    old, new = seconds(h, i, f, position, old_x, old_y), seconds(h, i, f, position, x, y)
    if old != new:
        times = factor(i, f, position)
        left = advance(i, f, q, position, slot, old * times)
        f[i[BOUNDS] + slot] = f[NOW] + left * (new * times)
    if follow(h, i, f, slot - s, slot, end, x, y) != last:
        i[SLOWED] += 1
        schedule(i, f, queue, f[i[BOUNDS] + end], i[STEP] * h[a + LAST_OP])


@inner
def settle_gpus(h: Places, i: Places, f: Cells) -> None:
    """Give kernels new speeds on every GPU whose state changed at this instant."""
    for k in range(i[DIRTY]):
        g = i[i[DIRTY_LIST] + k]
        a = i[GPUS] + g * GPU_WIDTH
        i[a + IS_DIRTY] = 0
        x, y = shares(i, f, g)
        for queue in range(i[a + FIRST_QUEUE], i[a + GPU_WIDTH + FIRST_QUEUE]):
            q = i[QUEUES] + queue * QUEUE_WIDTH
            if i[q + RUNNING] >= 0 and (f[q + SHARE_X] != x or f[q + SHARE_Y] != y):
                change_running(h, i, f, queue, x, y)
    i[DIRTY] = 0
