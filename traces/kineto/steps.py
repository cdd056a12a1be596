"""Relates the training steps of several ranks: which they share, and the step of each op.

A step has a number (``ProfilerStep#``), which is the same on all ranks. Ranks may have recorded
different steps, and some may have none; these are given another rank's steps, as all begin
together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from traces.kineto.clocks import ClockCorrection
from traces.kineto.linked import Linked


def of_kernels(ranks: Sequence[Linked]) -> dict[int, list[int]]:
    """Return, by rank, the step of each op of its GPU (-1 before the first).

    It is {} unless all ranks have steps. Collectives without a number of their own are matched
    inside steps.
    """
    if not all(one.steps for one in ranks):
        return {}
    return {
        one.trace.rank: [
            one.steps[row] if at >= one.step_starts[0] else -1
            for row, at in zip(one.gpu_step, one.begun, strict=True)
        ]
        for one in ranks
    }


def common(
    ranks: Sequence[Linked], clocks: Mapping[int, ClockCorrection], zero: int
) -> tuple[list[Linked], tuple[int, ...]]:
    """Return the ranks with their ops' steps as rows of all steps, and the numbers of all steps."""
    numbers = sorted({number for one in ranks for number in one.steps})
    if not numbers:
        return [*ranks], ()
    row = {number: k for k, number in enumerate(numbers)}
    longest = max(ranks, key=lambda one: len(one.steps))
    out = []
    for one in ranks:
        mine = one if one.steps else _as(one, longest, clocks, zero)
        place = np.array([row[number] for number in mine.steps])
        gpu, host = (place[steps].tolist() for steps in (mine.gpu_step, mine.host_step))
        out.append(replace(mine, gpu_step=gpu, host_step=host))
    return out, tuple(numbers)


def _as(one: Linked, other: Linked, clocks: Mapping[int, ClockCorrection], zero: int) -> Linked:
    """Return a rank with the steps of another, on its own clock."""
    mine, theirs = clocks[one.trace.rank], clocks[other.trace.rank]
    at = theirs((np.array(other.step_starts) - zero) / 1e9)
    own = (at - mine.offset) / (1 + mine.drift)
    starts = [zero + round(1e9 * second) for second in own.tolist()]

    def rows(begun: Sequence[int]) -> list[int]:
        return [max(bisect_right(starts, at) - 1, 0) for at in begun]

    return replace(
        one,
        steps=other.steps,
        step_starts=starts,
        gpu_step=rows(one.begun),
        host_step=rows([op.start for op in one.host]),
    )


def warnings(ranks: Sequence[Linked]) -> list[str]:
    """Return sentences about steps that not all ranks recorded."""
    have = [one for one in ranks if one.steps]
    lack = [one.trace.rank for one in ranks if not one.steps]
    out = []
    if have and lack:
        longest = max(have, key=lambda one: len(one.steps))
        out.append(
            f"{named('rank', lack)} recorded no ProfilerStep#, but others did; the steps of rank "
            f"{longest.trace.rank} are taken to be theirs"
        )
    if (both := shared(ranks)) is not None:
        of = {one.trace.rank: {*one.steps} for one in have}
        some = sorted(set.union(*of.values()) - {*both})
        by = [f"step {n} by {named('rank', [r for r in of if n in of[r]])} alone" for n in some[:4]]
        all_ = f"only {named('step', both)} by all" if both else "none by all"
        out.append(
            f"ranks recorded different steps: {', '.join(by)}{', ...' * (len(some) > 4)}, {all_}; "
            "collectives are matched inside steps of one number"
        )
    return out


def shared(ranks: Sequence[Linked]) -> tuple[int, ...] | None:
    """Return the steps that all ranks with any steps recorded; None if all recorded the same."""
    of = [{*one.steps} for one in ranks if one.steps]
    both = set.intersection(*of) if of else set()
    return tuple(sorted(both)) if any(one != both for one in of) else None


def named(what: str, numbers: Sequence[int]) -> str:
    """Return numbers in words.

    >>> named("rank", [3]), named("step", [4, 5, 7])
    ('rank 3', 'steps 4, 5, 7')
    """
    some = ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")
    return f"{what}{'s' * (len(numbers) > 1)} {some}"
