"""The search behind ZB-V: an order for given times and memory, two stages per rank in a V.

This is the greedy method of the authors of Qi et al. 2024 (arXiv:2405.15362): in each round, each
rank takes its next backward and its next forward, with W in the waits. Rank r runs stage r on the
way down and stage 2 · ranks - 1 - r on the way up.
"""

from __future__ import annotations

from itertools import product

from schedules import Plan
from schedules.search.choice import Objective
from schedules.search.plan_draft import Line, PlanDraft, StuckError, counts
from schedules.times import Given, exact


def zero_bubble_v(
    ranks: int,
    microbatches: int,
    limit: float,
    times: Given,
    objective: Objective = "span",
) -> list[Plan]:
    """Return the orders found for (F, I, W, p2p), the best first, at most ``limit`` activations.

    ``limit`` is at least 2 · ranks. Returns none where unequal times lead the method into orders
    that cannot go on.
    """
    seconds, found = exact(times, 2 * ranks), list[PlanDraft]()
    rank_of = [*range(ranks), *reversed(range(ranks))]
    starts = counts(rank_of, microbatches, seconds)
    for counted, fill in product(starts, product([True, False], repeat=2)):
        idle, last = [0] * ranks, float("inf")
        while True:
            draft = PlanDraft(rank_of, microbatches, seconds, limit, counted=counted)
            try:
                _schedule(draft, idle, *fill)
            except StuckError:
                break
            found.append(draft)
            if draft.span() >= last:
                break
            idle, last = draft.idle, draft.span()  # again: it is now known which waits cost nothing
    return [draft.plan for draft in sorted(found, key=lambda draft: draft.length(objective))]


def _schedule(draft: PlanDraft, idle: list[int], fill_backward: bool, fill_forward: bool) -> None:
    """Run all steps; ``idle`` is how long each rank waits anyway, so the others may wait too."""
    ranks = range(len(draft.plan))
    longest = max(idle)

    def take(line: Line, fills: bool) -> None:
        if not draft.can_take(line):
            return
        wait = max(draft.worst, longest - idle[line.rank]) - draft.idle[line.rank]
        draft.room(line)
        draft.fill(line, wait if fills else float("inf"))
        draft.put(line)

    _warm_up(draft)
    while before := draft.left():
        lines = [_next_backward(draft, rank) for rank in ranks]
        for line in reversed(lines):
            if line.stage == line.rank:  # on the way down
                take(line, True)
        for line in lines:
            if line.stage != line.rank:
                take(line, fill_backward)
        for rank in ranks:
            if forward := _next_forward(draft, rank):
                take(forward, fill_forward)
        if draft.left() == before:
            raise StuckError
    draft.put_all_weights()


def _warm_up(draft: PlanDraft) -> None:
    """Run the forwards before the first backward.

    The first microbatch goes down and up. While it is on its way up, each rank that waits for it
    sends others down, together with all ranks above. Then each rank, from the second on, catches up
    with the one above.
    """
    ranks, m = len(draft.plan), draft.microbatches
    down, up = draft.forward[:ranks], draft.forward[: -ranks - 1 : -1]
    for line in down:
        draft.put(line)
    for rank in reversed(range(ranks)):
        arrival = up[rank].inputs[0]
        while (
            draft.held[rank] + 4 * (rank + 1) <= draft.limit
            and draft.clock[rank] + down[rank].seconds <= arrival
            and down[rank].taken < m
        ):
            for line in down[: rank + 1]:
                draft.put(line)
        draft.put(up[rank])
    goes_down = True
    for rank in range(1, ranks):
        own, above = ((down[r], up[r]) for r in (rank, rank - 1))
        while (
            own[0].taken + own[1].taken < above[0].taken + above[1].taken
            or own[1].taken <= above[1].taken < m
        ):
            for line in reversed((down if goes_down else up)[rank:]):
                if line.taken < m:
                    draft.put(line)
            goes_down = not goes_down


def _next_backward(draft: PlanDraft, rank: int) -> Line:
    """Return the lower stage's line if its gradient is on its way, else the upper's."""
    lower, upper = draft.backward[rank], draft.backward[-1 - rank]
    if lower.taken >= upper.taken:
        return upper
    ready = lower.arrival() is not None
    return lower if ready or upper.taken == draft.microbatches else upper


def _next_forward(draft: PlanDraft, rank: int) -> Line | None:
    """Return the upper stage's line if its input is on its way, else the lower's, else None."""
    lower, upper = draft.forward[rank], draft.forward[-1 - rank]
    if upper.taken == draft.microbatches:
        return None
    if upper.taken >= lower.taken:
        return lower
    if upper.arrival() is not None:
        return upper
    return lower if lower.arrival() is not None else None
