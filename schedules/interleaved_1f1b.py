"""Interleaved 1F1B: several stages per rank (Narayanan et al. 2021, arXiv:2104.04473).

Rank r holds stages r, r + ranks, r + 2 * ranks, ... A microbatch passes over the ranks once per
chunk, so the bubble shrinks by the number of chunks and the communication grows by it.

Overlapped, it is Megatron-Core's ``overlap_moe_expert_parallel_comm``: the communication of one
member of a pair runs beside the kernels of the other.
"""

from collections.abc import Iterator

from schedules import Pair, Plan, Step
from schedules.input_error import InputError

P2P = "pair"
"""Megatron-LM overlaps messages here unless told not to (``--no-overlap-p2p-communication`` in
training/arguments.py), by ``isend`` and ``irecv``, which NCCL runs on a stream per rank pair."""


def interleaved_1f1b(
    ranks: int,
    microbatches: int,
    chunks: int = 2,
    group: int | None = None,
    overlap: bool = False,
) -> Plan:
    """Make a plan with ``chunks`` stages per rank.

    ``group`` microbatches pass one chunk before they enter the next. It is Megatron's
    ``microbatch_group_size_per_vp_stage``: a larger group has the same bubble and holds more
    activations. The default is one microbatch per rank or, where that leaves a rest, the group of
    torch's ``ScheduleInterleaved1F1B``. With ``overlap`` each forward of the steady phase and the
    backward behind it are a pair; one more forward before them makes the two independent.

    >>> " ".join(map(str, interleaved_1f1b(2, 2)[0]))
    '0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1'
    >>> " ".join(map(str, interleaved_1f1b(2, 2, overlap=True)[1]))
    '1F0 1F1 3F0 (3F1;3B0)OVERLAP_F_B 3B1 1B0 1B1'
    """
    group = _group(ranks, microbatches, group)
    table = [
        (chunk, m)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for m in range(first, min(first + group, microbatches))
    ]
    leads = _leads(ranks, chunks, group, len(table), overlap)
    return [list(_order(rank, ranks, chunks, table, leads[rank], overlap)) for rank in range(ranks)]


def check(
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    group: int | None = None,
    overlap: bool | None = None,
) -> None:
    """Raise InputError for microbatch counts that neither Megatron nor torch accepts."""
    _group(ranks, microbatches, group)


def _group(ranks: int, microbatches: int, group: int | None) -> int:
    rounds = max(1, microbatches // ranks)  # torch makes that many groups, all of one size
    torchs = None if microbatches % rounds else microbatches // rounds
    if group is None and torchs is None:
        raise InputError(
            f"{microbatches} microbatches do not make whole groups of {ranks}, one per rank; "
            f"{rounds * ranks} or {(rounds + 1) * ranks} would, or group = {microbatches}"
        )
    group = group or torchs or microbatches
    rest = microbatches % group
    if group != torchs and not (ranks <= group <= microbatches and (rest == 0 or rest >= ranks)):
        raise InputError(
            f"a microbatch group of {group} does not suit {microbatches} microbatches on {ranks} "
            f"ranks; it must lie between the two and leave no rest, or one of at least {ranks}"
        )
    return group


def _order(
    rank: int,
    ranks: int,
    chunks: int,
    table: list[tuple[int, int]],
    lead: int,
    overlap: bool,
) -> Iterator[Step | Pair]:
    forward = [Step(rank + chunk * ranks, "F", m) for chunk, m in table]
    backward = [Step(rank + (chunks - 1 - chunk) * ranks, "B", m) for chunk, m in table]
    yield from forward[:lead]
    for pair in zip(forward[lead:], backward, strict=False):
        yield from [Pair(*pair)] if overlap else pair
    yield from backward[len(table) - lead :]


def _leads(ranks: int, chunks: int, group: int, steps: int, overlap: bool) -> list[int]:
    """Return how many forwards each rank runs before its first backward, or its first pair."""
    least = (chunks - 1) * group + overlap
    return [min(2 * (ranks - 1 - rank) + least, steps) for rank in range(ranks)]


def bubble(
    ranks: int,
    microbatches: int,
    chunks: int,
    F: float,
    I: float,
    W: float,
    pair: str = "serial",
    FB: float | None = None,
) -> float | None:
    """Return the idle seconds of the rank that idles most.

    With fewer microbatches than ranks, each chunk waits for all of them. Overlapping changes
    nothing, with serial pairs or with fused ones that take F + I + W seconds; for other fused pairs
    no closed form is known, and this returns None.
    """
    if pair == "fused" and FB not in (None, F + I + W):
        return None
    rounds = (chunks - 1) * max(ranks - microbatches, 0) + ranks - 1
    return rounds * (F + I + W)


def peak_activations(
    ranks: int,
    microbatches: int,
    chunks: int = 2,
    group: int | None = None,
    overlap: bool = False,
) -> list[float]:
    """Return the most activations that each rank holds, in activations of a stage.

    They are those of the forwards before the first backward, and of one more if there is one.

    >>> peak_activations(4, 8), peak_activations(4, 8, group=8)
    ([11.0, 9.0, 7.0, 5.0], [15.0, 13.0, 11.0, 9.0])
    """
    group, steps = _group(ranks, microbatches, group), chunks * microbatches
    return [float(min(lead + 1, steps)) for lead in _leads(ranks, chunks, group, steps, overlap)]
