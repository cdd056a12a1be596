"""The search behind ZB-1p and ZB-2p: an order for given times and memory, one stage per rank.

This is the heuristic of Qi et al. 2023 (arXiv:2401.10241, section 3.1), with the choices that the
authors' scheduler tries: eight combinations, of which the shortest is taken. The authors take the
one whose longest span of a rank, from the start of its first step to the end of its last, is least.
"""

from __future__ import annotations

from itertools import product

from schedules import Plan
from schedules.input_error import InputError
from schedules.search.choice import Objective
from schedules.search.plan_draft import Line, PlanDraft, StuckError, counts
from schedules.times import Given, exact


def zero_bubble(
    ranks: int,
    microbatches: int,
    limit: float,
    times: Given,
    objective: Objective = "span",
) -> Plan:
    """Return the best of eight orders for (F, I, W, p2p); see :func:`zero_bubble_orders`."""
    return zero_bubble_orders(ranks, microbatches, limit, times, objective)[0]


def zero_bubble_orders(
    ranks: int,
    microbatches: int,
    limit: float,
    times: Given,
    objective: Objective = "span",
) -> list[Plan]:
    """Return eight orders for (F, I, W, p2p), the best first.

    Where some ranks have more to do than others, they are sixteen. A rank holds at most ``limit``
    activations. Raises InputError when that is below one, or no order is found in it.
    """
    if not limit >= 1:
        raise InputError(f"memory = {limit} stage activations hold no microbatch; give at least 1")
    seconds, found = exact(times, ranks), list[PlanDraft]()
    starts = counts(range(ranks), microbatches, seconds)
    for counted, choices in product(starts, product([True, False], repeat=3)):
        draft = PlanDraft(range(ranks), microbatches, seconds, limit, counted=counted)
        try:
            _schedule(draft, *choices)
        except StuckError:
            continue
        found.append(draft)
    if not found:
        raise InputError(f"no order was found in memory = {limit} stage activations; give more")
    return [draft.plan for draft in sorted(found, key=lambda draft: draft.length(objective))]


def _schedule(draft: PlanDraft, early: bool, backward_first: bool, greedy: bool) -> None:
    """Run all forwards that fit before the first backward, then one F and one I per round."""
    for line in draft.forward:
        draft.put(line)
    for line, more in zip(draft.forward, _warm_up(draft, early), strict=True):
        for _ in range(more):
            draft.put(line)
    for line in reversed(draft.backward):
        draft.put(line)
    for _ in range(1, draft.microbatches):
        for line in draft.forward[_first_forward(draft, backward_first) :]:
            _take(draft, line, greedy)
        for line in reversed(draft.backward):
            _take(draft, line, greedy)
    draft.put_all_weights()


def _take(draft: PlanDraft, line: Line, greedy: bool) -> None:
    """Run W as far as memory asks for it or time allows it, then the step."""
    draft.room(line)
    draft.fill(line, 0 if greedy else draft.spare(line.rank))
    if line is draft.backward[0] and draft.forward[0].taken == draft.microbatches:
        while draft.pending[0]:  # no rank before this one waits for its I
            draft.put_weights(0)
    draft.put(line)


def _warm_up(draft: PlanDraft, early: bool) -> list[int]:
    """Return how many more forwards each stage runs before its first backward.

    They are as many as memory allows until the gradient arrives. With ``early`` the last one ends
    before that; otherwise it starts before that. Each stage runs fewer than the one before it,
    unless that one runs all.
    """
    forward, inputs, _, hops = draft.times
    more = [0] * len(draft.plan)
    gradient = draft.clock[-1] + inputs[-1]
    for stage in range(len(more) - 2, -1, -1):
        arrival, time = gradient + hops[stage], draft.clock[stage]
        while (
            more[stage] + 1 < draft.microbatches
            and 2 * (more[stage] + 2) <= draft.limit
            and (time + forward[stage] <= arrival if early else time < arrival)
        ):
            more[stage] += 1
            time += forward[stage]
        gradient = max(time, arrival) + inputs[stage]
    for stage in range(1, len(more)):
        if more[stage - 1] + 1 < draft.microbatches:
            more[stage] = min(more[stage], max(more[stage - 1] - 1, 0))
    return more


def _first_forward(draft: PlanDraft, backward_first: bool) -> int:
    """Return the first of the stages that run a forward in this round."""
    for stage in range(len(draft.plan) - 1, -1, -1):
        if draft.forward[stage].taken == draft.microbatches:
            return stage + 1
        if backward_first and _yields(draft, stage):
            return stage + 1
    return 0


def _yields(draft: PlanDraft, stage: int) -> bool:
    """Return whether a stage that is two forwards ahead of the next waits for the next backward.

    It does when the forward, with the W that make room for it, would end after the gradient
    arrives, and the wait for the gradient is no longer than the longest so far.
    """
    own, *later = draft.forward[stage : stage + 2]
    if not later or own.taken < later[0].taken + 2:
        return False
    forward, inputs, weights, hops = draft.times
    later_pair = forward[stage + 1] + inputs[stage + 1]
    wait = draft.clock[stage + 1] + later_pair + hops[stage] - draft.clock[stage]
    if wait <= 0:
        return True
    over = max(draft.held[stage] + own.memory - draft.limit, 0)
    making_room = min(over, len(draft.pending[stage]))  # a W frees one half
    return forward[stage] + making_room * weights[stage] > wait and wait <= draft.spare(stage)
