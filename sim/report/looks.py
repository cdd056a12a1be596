"""The look of a block: the phase of its kernels, or whose transfer it is, in sim.plots' colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sim.analysis.activity import COMPUTE, HOST, activities
from sim.graph import PHASES, Bools, Fixed, Graph, Longs
from sim.plots import style

_KERNELS = [
    (colour, "#ffffff" if name in style.DARK else "#000000")
    for name, (_, colour) in style.PHASES.items()
    if name not in ("", "B")
]
_OTHERS = {HOST: "#c8c8c8", "communication": style.TRANSFERS["dp"]}


def looks(graph: Graph) -> tuple[list[dict[str, Any]], Longs]:
    """Return the distinct looks, phases first, and the row of its look for each op.

    ``ink`` is a colour that is legible on the look's colour. ``pale`` is the tint of a transfer
    that waits for a peer; phases have none.
    """
    kinds = activities(graph)
    computing = kinds.code == kinds.names.index(COMPUTE)
    code = np.where(computing, graph.phase, len(PHASES) + kinds.code).astype(np.int64)
    if not graph.phase.any():
        return _by_name(graph, kinds.names, code, computing)
    used = np.unique(code)
    table = [_phase(PHASES[k]) if k < len(PHASES) else _transfer(kinds.names[k - len(PHASES)])
             for k in used.tolist()]  # fmt: skip
    return table, np.searchsorted(used, code)


def _by_name(
    graph: Graph, kinds: Sequence[str], code: Longs, computing: Bools
) -> tuple[list[dict[str, Any]], Longs]:
    """Return the looks of a recording without phases: the longest kernels have their own."""
    each = np.array([work.seconds if isinstance(work, Fixed) else 0.0 for work in graph.works])
    seconds = np.bincount(graph.name, each[graph.work] * computing, len(graph.names))
    most = [k for k in np.argsort(-seconds, kind="stable")[: len(_KERNELS)].tolist() if seconds[k]]
    look = np.full(len(graph.names), len(most), np.int64)
    look[most] = np.arange(len(most))
    base = len(PHASES) + len(most) + 1
    own = np.where(computing, look[graph.name], code + base)
    used = np.unique(own)
    named = [_kernel(graph.names[k], *_KERNELS[i]) for i, k in enumerate(most)]
    named.append(_kernel(*_phase("").values()))
    table = [
        named[k] if k < len(named) else _transfer(kinds[k - base - len(PHASES)])
        for k in used.tolist()
    ]
    return table, np.searchsorted(used, own)


def _kernel(name: str, colour: str, ink: str) -> dict[str, Any]:
    return {"label": name[:40], "colour": colour, "ink": ink, "kernel": True}


def _phase(name: str) -> dict[str, Any]:
    label, colour = style.PHASES[name]
    ink = "#ffffff" if name in style.DARK else "#000000"
    return {"label": label, "colour": colour, "ink": ink}


def _transfer(name: str) -> dict[str, Any]:
    colour = style.TRANSFERS.get(name, _OTHERS.get(name, style.OTHER))
    look = {"label": name, "colour": colour, "ink": "#000000"}
    return look if name == HOST else look | {"pale": style.pale(colour)}
