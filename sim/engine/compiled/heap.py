"""The queue of events: a binary heap in which each event stands at most once."""

from __future__ import annotations

from sim.engine.compiled.fields import (
    EVENT,
    EVENTS,
    HEAP,
    HEAP_WIDTH,
    NOW,
    PLACES,
    TIME,
    TURN,
)
from sim.engine.compiled.jit import inner
from sim.machine.network import Cells, Places


@inner
def rise(i: Places, f: Cells, row: int, event: int, time: float, turn: int) -> None:
    """Put an event into the free ``row``, or higher up if it comes before those there."""
    heap = i[HEAP]
    while row > 0:
        above = (row - 1) >> 1
        b = heap + above * HEAP_WIDTH
        if f[b + TIME] < time or (f[b + TIME] == time and i[b + TURN] <= turn):
            break
        a = heap + row * HEAP_WIDTH
        f[a + TIME], i[a + TURN], i[a + EVENT] = f[b + TIME], i[b + TURN], i[b + EVENT]
        i[i[PLACES] + i[b + EVENT]] = row
        row = above
    a = heap + row * HEAP_WIDTH
    f[a + TIME], i[a + TURN], i[a + EVENT] = time, turn, event
    i[i[PLACES] + event] = row


@inner
def sink(i: Places, f: Cells, row: int, event: int, time: float, turn: int) -> None:
    """Put an event into the free ``row``, or further down if those there come before it."""
    heap, n = i[HEAP], i[EVENTS]
    below = 2 * row + 1
    while below < n:
        b = heap + below * HEAP_WIDTH
        if below + 1 < n:
            c = b + HEAP_WIDTH
            if f[c + TIME] < f[b + TIME] or (
                f[c + TIME] == f[b + TIME] and i[c + TURN] < i[b + TURN]
            ):
                below, b = below + 1, c
        if time < f[b + TIME] or (time == f[b + TIME] and turn <= i[b + TURN]):
            break
        a = heap + row * HEAP_WIDTH
        f[a + TIME], i[a + TURN], i[a + EVENT] = f[b + TIME], i[b + TURN], i[b + EVENT]
        i[i[PLACES] + i[b + EVENT]] = row
        row, below = below, 2 * below + 1
    a = heap + row * HEAP_WIDTH
    f[a + TIME], i[a + TURN], i[a + EVENT] = time, turn, event
    i[i[PLACES] + event] = row


@inner
def schedule(i: Places, f: Cells, event: int, time: float, turn: int) -> None:
    """Let an event happen at ``time``, instead of when it was to happen until now."""
    row = i[i[PLACES] + event]
    if row >= 0:
        if time > f[i[HEAP] + row * HEAP_WIDTH + TIME]:
            sink(i, f, row, event, time, turn)
            return
    else:
        row = i[EVENTS]
        i[EVENTS] += 1
    rise(i, f, row, event, time, turn)


@inner
def pop(i: Places, f: Cells) -> int:
    """Take the next event out of the queue, set the clock to its time and return it."""
    heap = i[HEAP]
    event = i[heap + EVENT]
    f[NOW] = f[heap + TIME]
    i[i[PLACES] + event] = -1
    i[EVENTS] -= 1
    last = heap + i[EVENTS] * HEAP_WIDTH
    if i[EVENTS] > 0:
        sink(i, f, event - event, i[last + EVENT], f[last + TIME], i[last + TURN])
    return event
