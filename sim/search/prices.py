"""What works take alone on a cluster: kernels at boost clock, collectives on an empty network."""

from __future__ import annotations

from sim.graph import Communication, Compute, Fixed
from sim.machine.cluster import Cluster
from sim.machine.collectives import alone, traffic
from sim.machine.kernels import compute_seconds
from sim.runs.kept import Kept


class Prices:
    """What works take alone on a cluster, each found once."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[object, tuple[float, float]] = {}

    def kernel(self, work: object) -> tuple[float, float]:
        """Return the seconds of a kernel, and those of them that other kernels make longer."""
        if work not in self._known:
            self._known[work] = self._kernel(work)
        return self._known[work]

    def _kernel(self, work: object) -> tuple[float, float]:
        if isinstance(work, Compute):
            arithmetic, memory, fixed = compute_seconds(self.cluster.gpu, work)
            return max(arithmetic, memory) + fixed, max(arithmetic, memory)
        return (work.seconds, 0.0) if isinstance(work, Fixed) else (0.0, 0.0)

    def collective(self, kind: str, size: float, ranks: tuple[int, ...], algorithm: str) -> float:
        """Return the seconds of a communication on an empty network."""
        key = (kind, size, ranks, algorithm)
        if key not in self._known:
            work = Communication(kind, size, ranks, "", algorithm)
            self._known[key] = (alone(self.cluster, traffic(self.cluster, work)), 0.0)
        return self._known[key][0]


_prices = Kept[Prices](4)


def prices(cluster: Cluster) -> Prices:
    """Return the prices of a cluster, which are kept for the next layout."""
    return _prices.of(cluster, lambda: Prices(cluster))
