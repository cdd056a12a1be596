"""How long the host takes to issue each op of a step, given its prices by class of op."""

from __future__ import annotations

import numpy as np

from sim.graph import (
    PHASES,
    Bools,
    Communication,
    Compute,
    Copy,
    Fixed,
    Floats,
    Graph,
    Host,
    Longs,
    Work,
)
from sim.machine.host_prices import CLASSES, HostPrices

Flags = Bools

NONE = len(CLASSES)
"""The class of what takes none of the host's time: the CPU's own work, and copies around FSDP's
collectives, whose issue is part of the unit's hook."""
_GATHER, _COPIES = "param_all_gather", ("param_copy_in", "param_copy_out", "grad_copy_in")
_REDUCE = ("grad_reduce_scatter", "grad_all_reduce")
_KINDS = {"grouped_gemm": "gemm", "attention_backward": "attention"}
_OUTSIDE = tuple(CLASSES.index(name) for name in ("message", "copy", "gather", "reduce"))


def seconds(graph: Graph, prices: HostPrices) -> Floats:
    """Return the seconds in which the host issues each op, shape (n,)."""
    of, back = classes(graph), np.isin(graph.phase, _rows("IWB"))
    passes = (prices.forward, prices.backward)
    table = np.array([[*(by[name] for name in CLASSES), 0.0] for by in passes])
    out: Floats = table[back.astype(np.int64), of]
    inside = (graph.layer >= 0) & np.isin(graph.phase, _rows("FRIWB"))
    if prices.graphed:
        out[inside & ~np.isin(of, _OUTSIDE)] = 0.0
    if any(prices.layer):
        enters = _enters(graph, inside, back)
        out[enters] += np.array(prices.layer)[back[enters].astype(np.int64)]
    return out


def classes(graph: Graph) -> Longs:
    """Return the class of each op, shape (n,): a row of CLASSES, or NONE."""
    of_work = np.array([_class(work) for work in graph.works], np.int64)
    out: Longs = of_work[graph.work]
    gathers = _named(graph, _GATHER) & (graph.phase != PHASES.index("O"))
    if gathers.any():  # FSDP: its units gather parameters in the passes themselves
        out[gathers] = CLASSES.index("gather")
        out[_named(graph, *_REDUCE)] = CLASSES.index("reduce")
        out[_named(graph, *_COPIES)] = NONE
    return out


def _class(work: Work) -> int:
    match work:
        case Compute(kind=kind):
            name = _KINDS.get(kind, kind)
        case Communication(collective=collective):
            name = "message" if collective == "p2p" else "collective"
        case Copy():
            name = "copy"
        case Fixed():
            name = "elementwise"
        case Host():
            return NONE
    return CLASSES.index(name)


def _named(graph: Graph, *names: str) -> Flags:
    flags: Flags = np.array([name in names for name in graph.names], np.bool_)[graph.name]
    return flags


def _enters(graph: Graph, inside: Flags, back: Flags) -> Longs:
    """Return the first op of each pass over each layer; recomputation passes over it again."""
    ops = np.flatnonzero(inside)
    _, rank = np.unique(graph.rank[ops], return_inverse=True)
    again = graph.phase[ops] == PHASES.index("R")
    key = np.zeros(len(ops), np.int64)
    columns = (graph.step, graph.stage, graph.microbatch, graph.layer)
    for column in (rank, *(column[ops] for column in columns), back[ops], again):
        key = key * (int(column.max(initial=0)) + 2) + column + 1  # -1 is a value too
    _, first = np.unique(key, return_index=True)
    out: Longs = ops[np.sort(first)]
    return out


def _rows(phases: str) -> list[int]:
    return [PHASES.index(one) for one in phases]
