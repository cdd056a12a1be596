"""ZB-2p: zero bubble in twice 1F1B's memory, its order found for given times (Qi et al. 2023).

arXiv:2401.10241, section 3: a heuristic places F, I and W, or an integer program where they are
few. Where ZB-H1, ZB-H2 or 1F1B with split backwards is shorter and fits, that is taken.
"""

from schedules import Plan
from schedules.search.choice import Objective
from schedules.search.integer import best_order
from schedules.search.orders import Asked, one_stage
from schedules.times import Given, Seconds

POLICIES = ("direction", "pair")  # of p2p, under which no order stops; batched may
P2P = "pair"
"""As its authors send: ``isend`` and ``irecv``, which NCCL runs on a stream per pair of ranks
(sail-sg/zero-bubble-pipeline-parallelism, zerobubble/runtime.py)."""


def zb_2p(
    ranks: int,
    microbatches: int,
    F: Seconds = 1.0,
    I: Seconds = 1.0,
    W: Seconds = 1.0,
    p2p: Seconds = 0.0,
    memory: float | None = None,
    exact: bool = False,
    objective: Objective = "span",
    policy: str = "direction",
) -> Plan:
    """Make a plan with one stage per rank; a rank holds at most ``memory`` stage activations.

    F, I and W are in seconds, one number for all stages or one for each. A microbatch holds one
    activation from F on and half of one from I to W; ``memory`` is two per rank unless given.
    ``p2p`` is the seconds of a message, one number or one for each boundary between stages, and
    ``policy`` says on which streams messages go: ``direction``, ``pair`` or ``batched``. The order
    has the shortest ``objective`` of those found and those made by hand, the longest ``span`` from
    a rank's first step to its last or the ``makespan``; with ``exact``, of all there are.

    >>> " ".join(map(str, zb_2p(ranks=2, microbatches=3)[0]))
    '0F0 0F1 0F2 0I0 0W0 0I1 0W1 0I2 0W2'

    Raises InputError when there is no order in that memory, the exact one is out of reach, or times
    and stages differ in number.
    """
    times = (F, I, W, p2p)
    if exact:
        limit = 2 * ranks if memory is None else memory
        return best_order(ranks, microbatches, limit, times, objective)
    return orders(ranks, microbatches, times, objective, policy, memory)[0]


def orders(
    ranks: int,
    microbatches: int,
    times: Given,
    objective: Objective,
    policy: str,
    memory: float | None = None,
) -> list[Plan]:
    """Return the orders among which the schedule chooses, the shortest first."""
    limit = 2 * ranks if memory is None else memory
    return one_stage(Asked(ranks, microbatches, limit, times, objective, policy))


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
) -> float | None:
    """Return the idle seconds of the makespan for equal times without hops.

    They are the lead-in: with at least 2 · ranks - 1 microbatches no rank idles between its first
    step and its last. Returns None where no closed form is known.
    """
    return (ranks - 1) * F if F == I == W and microbatches >= ranks else None


def peak_activations(ranks: int, microbatches: int, chunks: int = 1) -> list[float]:
    """Return the most stage activations that each rank holds by default."""
    return [float(min(2 * ranks, microbatches))] * ranks
