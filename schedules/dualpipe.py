"""DualPipe: microbatches enter at both ends of the pipeline (DeepSeek-V3, arXiv:2412.19437).

Every rank holds two stages, its own and that of the opposite rank, so parameters are held twice.
Microbatches of the first half run stage s on rank s, those of the second half on rank p - 1 - s.
Forwards of one direction overlap with backwards of the other (:class:`schedules.Pair`).
"""

from schedules import Plan
from schedules.input_error import InputError
from schedules.patterns.two_directions import order

P2P = "pair"
"""DeepSeek batches messages (dualpipe.py, ``_commit_and_wait_comm``) but posts some before the step
that needs them; ``batched``, which posts each beside its step, stops. So torch's streams."""


def dualpipe(ranks: int, microbatches: int) -> Plan:
    """Make DeepSeek's own order, https://github.com/deepseek-ai/DualPipe.

    >>> " ".join(map(str, dualpipe(2, 4)[0]))
    '0F0 1F2 0F1 1B2 (1F3;0B0)OVERLAP_F_B 1B3 0I1 0W1'
    """
    check(ranks, microbatches)
    half, each = ranks // 2, microbatches // 2
    plan: Plan = []
    for rank in range(ranks):
        own, opposite = rank, ranks - 1 - rank
        ways = [(own, 0), (opposite, each)]
        plan.append(list(order(half, min(own, opposite), each, ways[:: 1 if own < half else -1])))
    return plan


def check(ranks: int, microbatches: int) -> None:
    """Raise InputError for shapes without two equal directions that are full."""
    if ranks % 2:
        raise InputError(f"dualpipe needs an even number of ranks; {ranks + 1} would do")
    if microbatches % 2 or microbatches < 2 * ranks:
        near = max(2 * ranks, microbatches + 1)
        raise InputError(
            f"dualpipe needs an even number of microbatches, at least two per rank; "
            f"{microbatches} on {ranks} ranks are not; {near} would do"
        )


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
    pair: str = "serial",
    FB: float | None = None,
) -> float:
    """Return the idle seconds of the rank that idles most.

    With serial pairs they are (p / 2 - 1)(F + I - W) where W <= I <= F <= I + W. With fused pairs
    of FB seconds (F + I + W unless given) they are DeepSeek's (p / 2 - 1)(FB + I - 2 W) where
    W <= I = F. The other terms here were found by simulation and agree with it exactly.

    Raises InputError for fused pairs where I and F differ, since no closed form is known.
    """
    places = ranks // 2 - 1  # outside the middle
    if pair == "serial":
        late = max(0.0, I - W) + max(0.0, F - I - W)
        return places * (F + late) + max(0.0, places * (I - F) - F)
    if F != I:
        raise InputError(f"no closed form for fused pairs where F = {F} and I = {I} differ")
    return places * ((F + I + W if FB is None else FB) - W + max(0.0, I - W))


def peak_activations(ranks: int, microbatches: int, chunks: int) -> list[float]:
    """Return the most activations that each rank holds: one more than there are ranks."""
    return [ranks + 1.0] * ranks
