"""What the seconds of a step go to: work, recomputation, imbalance, bubble, waiting, communication.

The rank that computes longest sets the pace, so its step is accounted for. Its computing is the
mean over ranks plus what it has to do more, the imbalance; the rest are its causes of not computing
(:mod:`sim.analysis.idle`). So the parts sum to the step.
"""

from __future__ import annotations

import numpy as np

from sim.analysis.activity import COMPUTE, activities, by_rank
from sim.analysis.idle import idle
from sim.analysis.intervals import union
from sim.analysis.weights import weights
from sim.graph import PHASES, Floats, Longs
from sim.timeline import Timeline

GROUPS = {
    "warm_up": "bubble",
    "drain": "bubble",
    "dependency": "waiting",
    "lag": "host",
    "launch": "host",
}
"""What causes of not computing count as; others keep their names."""


def accounting(timeline: Timeline) -> dict[str, float]:
    """Say what the step's seconds go to, on the rank that computes longest.

    In seconds: ``compute`` without recomputation and ``recomputed``, both as means over the ranks
    of the job; ``imbalance``, what this rank computes more than the mean; ``bubble`` (warm-up and
    drain), ``waiting`` for peers, ``exposed_<dimension>`` and ``host``. They sum to the step.
    """
    graph = timeline.graph
    if not len(graph):
        return {}
    ranks = graph.ranks()
    compute, useful = _computing(timeline)
    share = weights(graph, ranks) / weights(graph, ranks).sum()
    most = int(compute.argmax())
    out = {
        "compute": float(useful @ share),
        "recomputed": float((compute - useful) @ share),
        "imbalance": float(compute[most] - compute @ share),
    }
    for cause, seconds in idle(timeline).by_cause().items():
        name = GROUPS.get(cause, cause)
        out[name] = out.get(name, 0.0) + float(seconds[most])
    return {name: seconds for name, seconds in out.items() if seconds}


def _computing(timeline: Timeline) -> tuple[Floats, Floats]:
    """Return the seconds in which each rank computes, and those not spent on recomputation."""
    graph, kinds = timeline.graph, activities(timeline.graph)
    computes = kinds.code == kinds.names.index(COMPUTE)
    again = graph.phase == PHASES.index("R")

    def busy(ops: Longs) -> float:
        return union(timeline.start[ops], timeline.end[ops]).seconds()

    rows = [(ops[computes[ops]], ops[computes[ops] & ~again[ops]]) for _, ops in by_rank(graph)]
    return np.array([busy(all_) for all_, _ in rows]), np.array([busy(rest) for _, rest in rows])
