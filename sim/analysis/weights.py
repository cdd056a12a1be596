"""A helper of analyses: how many ranks of the job each simulated rank stands for."""

from __future__ import annotations

import numpy as np

from sim.graph import Floats, Graph, Ints


def weights(graph: Graph, ranks: Ints) -> Floats:
    """Return for each of ``ranks`` the number of ranks of the job that it stands for."""
    return np.array([graph.stands_for.get(rank, 1) for rank in ranks.tolist()], np.float64)
