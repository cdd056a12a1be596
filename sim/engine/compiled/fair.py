"""Links shared among the flows that meet on them, by the solver that every engine calls."""

from __future__ import annotations

from sim.engine.compiled.fields import (
    ALIVE,
    CAPACITY,
    COEFFICIENT,
    COEFFICIENTS,
    ENTRIES,
    FIRST_LOAD,
    FLOOR,
    GROUP,
    GROUP_LINKS,
    LEVEL,
    LINK_STAMP,
    LINK_WIDTH,
    LINKS,
    LOAD_LINK,
    LOAD_WIDTH,
    LOADS,
    LOCAL,
    PART_WIDTH,
    PARTS,
    ROOM,
    SPEEDS,
    STAMP,
    STARTS,
    USED,
    WORK,
    WORK_WIDTH,
    WORKS,
)
from sim.engine.compiled.jit import ahead, inner
from sim.machine import network
from sim.machine.network import Cells, Places

lowest_level, settle_flows = inner(network._lowest), inner(network._settle)


@inner
def fair(h: Places, i: Places, f: Cells, flows: int) -> None:
    """Write the max-min fair speeds of the first so many parts of the group into SPEEDS."""
    system(h, i, f, flows)
    starts, entries, alive = ahead(i, i[STARTS]), ahead(i, i[ENTRIES]), ahead(i, i[ALIVE])
    loads, room = ahead(f, i[COEFFICIENTS]), ahead(f, i[ROOM])
    speed, used = ahead(f, i[SPEEDS]), ahead(f, i[USED])
    level, floor = ahead(f, i[LEVEL]), ahead(f, i[FLOOR])
    living, links = flows, i[GROUP_LINKS]
    while living:
        lowest = lowest_level(
            starts, entries, loads, room, used, level, floor, alive, living, links
        )
        living = settle_flows(
            starts, entries, loads, speed, used, level, floor, alive, living, lowest
        )


@inner
def system(h: Places, i: Places, f: Cells, flows: int) -> None:
    """Write which links the parts of the group load, and how, and how full each is: not at all."""
    i[GROUP_LINKS], entries = 0, 0
    for k in range(flows):
        w = i[WORKS] + h[i[PARTS] + i[i[GROUP] + k] * PART_WIDTH + WORK] * WORK_WIDTH
        i[i[STARTS] + k], i[i[ALIVE] + k] = entries, k
        for n in range(i[w + FIRST_LOAD], i[w + WORK_WIDTH + FIRST_LOAD]):
            a = i[LOADS] + n * LOAD_WIDTH
            i[i[ENTRIES] + entries] = local(i, f, i[a + LOAD_LINK])
            f[i[COEFFICIENTS] + entries] = f[a + COEFFICIENT]
            entries += 1
    i[i[STARTS] + flows] = entries


@inner
def local(i: Places, f: Cells, link: int) -> int:
    """Return the row of a link among those of the group, a new one if it has none yet."""
    a = i[LINKS] + link * LINK_WIDTH
    if i[a + LINK_STAMP] > 0:
        row = i[GROUP_LINKS]
        i[a + LINK_STAMP], i[a + LOCAL] = -i[STAMP], row
        f[i[ROOM] + row], f[i[USED] + row], f[i[FLOOR] + row] = f[a + CAPACITY], 0.0, 0.0
        i[GROUP_LINKS] += 1
    return i[a + LOCAL]
