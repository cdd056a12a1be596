"""Prices in columns: what each distinct work of a graph takes from the machine it runs on.

A graph repeats a few works millions of times, so each work is priced once; the engine reads
columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.graph import Communication, Fixed, Floats, Graph, Ints, Work, offsets


class Limits(NamedTuple):
    """What the power of a GPU allows, in shares of its rated power less its idle power."""

    power: float  # that the board may draw, less idle
    window: float  # seconds over which its mean counts
    exponent: float  # of power over clock, while voltage follows
    floor: float  # clock below which voltage no longer falls, a share of boost


@dataclass(frozen=True, eq=False)
class Machine:
    """One row per distinct work of a graph, in the graph's order, unless a column says otherwise.

    A kernel that runs alone takes max(arithmetic, memory) + fixed seconds. Under sharing it has a
    share x of the SMs and y of the memory bandwidth and takes max(arithmetic / x, memory / y) +
    fixed; arithmetic, whose operands come from memory too, loses ``contention`` times the share of
    memory bandwidth that communication takes, on top of SMs. A communication takes its latency,
    then moves ``size`` bytes over its most loaded link at a speed that its links allow; it loads
    each link with ``coefficient`` times that speed.
    """

    arithmetic: Floats  # seconds of FLOPs at the efficiency of the kernel's shape
    memory: Floats  # seconds of memory traffic
    fixed: Floats  # seconds that no share changes
    latency: Floats  # seconds of a communication before its data moves
    size: Floats  # bytes of a communication on its most loaded link
    speed: Floats  # B/s of a communication on that link when it runs alone
    sms: Ints  # SMs that a communication takes on each of its ranks, from its start
    hbm: Floats  # share of memory bandwidth that it takes there while it moves at ``speed``
    link_start: Ints  # one more than works: work w loads link[link_start[w]:link_start[w + 1]]
    link: Ints  # link indices, one per work and link that it loads
    coefficient: Floats  # load on that link over the load on the most loaded link
    capacity: Floats  # B/s of each link
    gpu_sms: int  # SMs of one GPU
    contention: float = 0.0
    """Speed that arithmetic loses over memory bandwidth that communication takes, both shares."""
    factor: Floats | None = None
    """For each op of the graph, the factor on its work's seconds; 1 for members of parts."""
    limits: Limits | None = None
    """What a GPU's power allows; None: it computes at boost clock throughout."""
    tensor: Floats | None = None
    """Seconds of full power that the arithmetic of a work takes, where there are limits."""
    traffic: Floats | None = None
    """Seconds of full power that a work takes which memory limits, where there are limits."""
    clocks: Floats | None = None
    """For each op, the factor by which its GPU's clock lengthens it. A run finds it itself
    (:mod:`sim.engine.clocks`)."""
    slowest: float = 1.0
    """The factor on tensor work, in the columns above, that is expected of the slowest GPU."""
    apart: Floats | None = None
    """Seconds by which latencies differ among the communications that this one stands for."""

    @property
    def times(self) -> Floats | None:
        """For each op, both factors together; None where no op has one."""
        if self.factor is None or self.clocks is None:
            return self.clocks if self.factor is None else self.factor
        return self.factor * self.clocks

    @property
    def transfer(self) -> Floats:
        """Seconds in which a communication that runs alone moves its bytes."""
        return np.divide(self.size, self.speed, out=np.zeros_like(self.size), where=self.size > 0)

    @property
    def alone(self) -> Floats:
        """Seconds that each work takes when nothing else runs."""
        kernel = np.maximum(self.arithmetic, self.memory) + self.fixed
        return kernel + (self.latency + self.transfer)

    def kernels(self, sms: int, hbm: float, beside: int) -> Floats:
        """Return the seconds of each work on a GPU, shape (works,), beside communication.

        Communication holds ``sms`` SMs and a share ``hbm`` of the memory bandwidth. The rest goes
        in equal shares to the ``beside`` kernels that run. Communication leaves compute at least
        one SM and a hundredth of the memory bandwidth, and takes its own time. Arithmetic loses
        ``contention`` times ``hbm`` of its speed.
        """
        x = max(self.gpu_sms - sms, 1) / self.gpu_sms / beside
        x *= max(1.0 - self.contention * hbm, 0.01)
        y = max(1.0 - hbm, 0.01) / beside
        kernel = np.maximum(self.arithmetic / x, self.memory / y) + self.fixed
        return kernel + (self.latency + self.transfer)


def table(
    works: tuple[Work, ...],
    kernel: Callable[[Work], tuple[float, float, float]],
    traffic: Callable[[Communication], CommunicationCost],
    capacity: Floats,
    gpu_sms: int,
    contention: float = 0.0,
) -> Machine:
    """Return a machine, given a price for each kernel and a traffic for each communication."""
    rows = [
        kernel(work) if not isinstance(work, Communication) else (0.0, 0.0, 0.0) for work in works
    ]
    loads = [traffic(work) if isinstance(work, Communication) else NOTHING for work in works]
    arithmetic, memory, fixed = np.array(rows, np.float64).reshape(-1, 3).T
    return Machine(
        arithmetic=arithmetic.copy(),
        memory=memory.copy(),
        fixed=fixed.copy(),
        latency=np.array([load.latency for load in loads], np.float64),
        size=np.array([load.size for load in loads], np.float64),
        speed=np.array([_speed(load, capacity) for load in loads], np.float64),
        sms=np.array([load.sms for load in loads], np.int32),
        hbm=np.array([load.hbm for load in loads], np.float64),
        link_start=offsets([len(load.links) for load in loads]),
        link=np.array([link for load in loads for link in load.links], np.int32),
        coefficient=np.array([c for load in loads for c in load.coefficients], np.float64),
        capacity=capacity,
        gpu_sms=gpu_sms,
        contention=contention,
        apart=np.array([load.apart for load in loads], np.float64),
    )


@dataclass(frozen=True)
class CommunicationCost:
    """A communication as the engine sees it; see :class:`Machine` for the fields."""

    latency: float
    size: float = 0.0
    links: tuple[int, ...] = ()
    coefficients: tuple[float, ...] = ()
    sms: int = 0
    hbm: float = 0.0
    apart: float = 0.0


NOTHING = CommunicationCost(0.0)


def _speed(load: CommunicationCost, capacity: Floats) -> float:
    pairs = zip(load.links, load.coefficients, strict=True)
    return min((float(capacity[link]) / c for link, c in pairs if c > 0), default=np.inf)


def ideal(graph: Graph, p2p: float | Callable[[Communication], float] = 0.0) -> Machine:
    """Return the machine of the theory: fixed work takes its seconds, communication ``p2p``.

    ``p2p`` is in seconds, or a function that returns them, and nothing is shared. Raises ValueError
    for work whose seconds only a real machine determines.
    """

    def seconds(work: Work) -> tuple[float, float, float]:
        if isinstance(work, Fixed):
            return (0.0, 0.0, work.seconds)
        raise ValueError(f"the ideal machine runs fixed work and communication, not {work}")

    def message(work: Communication) -> CommunicationCost:
        return CommunicationCost(p2p(work) if callable(p2p) else p2p)

    return table(graph.works, seconds, message, np.empty(0), gpu_sms=1)
