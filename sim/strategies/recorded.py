"""Tensors that a collective's stream still holds when the host has let go of them.

torch hands such a block out again only when the host sees the collective's event done
(``record_stream``, unless TORCH_NCCL_AVOID_RECORD_STREAMS is set), and the host is far ahead: the
whole inputs of a forward's reduce-scatters pile up. It stops where it waits for another stage. Not
so in the warm-up of the first stage, which receives nothing before its first backward. These bytes
are reserved, but not in what torch calls allocated.
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.graph import Memory
from sim.program import Collective, Item, Program

RECORDED = "recorded"
"""Their category of memory."""


def recorded(programs: Mapping[str, Program], ahead: bool) -> dict[str, Program]:
    """The programs of a stage with them: freed as F ends or, ``ahead``, as B or I begins."""
    forward = list(programs["F"])
    sizes = {i: size for i, item in enumerate(forward) if (size := _read(item))}
    for i, size in sizes.items():
        forward[i] = _with(forward[i], size, "start")
    total = sum(sizes.values())
    out = {**programs, "F": forward}
    if not ahead:
        forward[-1] = _with(forward[-1], -total, "end")
        return out
    for kind in "BI":
        first, *others = programs[kind]
        out[kind] = [_with(first, -total, "start"), *others]
    return out


def _read(item: Item) -> float:
    """Bytes of the whole input of a reduce-scatter of tp."""
    scatters = isinstance(item, Collective) and item.collective == "reduce_scatter"
    return item.bytes if isinstance(item, Collective) and scatters and item.axis == "tp" else 0.0


def _with(item: Item, size: float, at: str) -> Item:
    return item._replace(memory=(*item.memory, Memory(RECORDED, size, at))) if size else item
