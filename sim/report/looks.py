"""The look of a block: the phase of its kernels, or whose transfer it is, in sim.plots' colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.analysis.activity import COMPUTE, HOST, activities
from sim.graph import PHASES, Graph
from sim.plots import style

Rows = NDArray[np.int64]


def looks(graph: Graph) -> tuple[list[dict[str, Any]], Rows]:
    """The distinct looks, phases first, and which of them each op has.

    ``ink`` is what is legible on the colour, ``pale`` the tint of a transfer that waits for a peer;
    phases have none.
    """
    kinds = activities(graph)
    computing = kinds.code == kinds.names.index(COMPUTE)
    code = np.where(computing, graph.phase, len(PHASES) + kinds.code).astype(np.int64)
    used = np.unique(code)
    table = [_phase(PHASES[k]) if k < len(PHASES) else _transfer(kinds.names[k - len(PHASES)])
             for k in used.tolist()]  # fmt: skip
    return table, np.searchsorted(used, code)


def _phase(name: str) -> dict[str, Any]:
    label, colour = style.PHASES[name]
    ink = "#ffffff" if name in style.DARK else "#000000"
    return {"label": label, "colour": colour, "ink": ink}


def _transfer(name: str) -> dict[str, Any]:
    colour = style.TRANSFERS.get(name, style.OTHER)
    look = {"label": name, "colour": colour, "ink": "#000000"}
    return look if name == HOST else look | {"pale": style.pale(colour)}
