"""The orders among which searched schedules choose, for given times, memory and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from schedules import Plan
from schedules.search import by_hand
from schedules.search.choice import Objective, fitting, ranked
from schedules.search.plan_draft import ALL_AT_WEIGHTS
from schedules.search.v_pattern import Pattern, run_pattern
from schedules.search.zb_v import zero_bubble_v
from schedules.search.zero_bubble import zero_bubble_orders
from schedules.times import Given, exact, is_even, mean, with_waits

MOST_TIMED = 4
"""How many of the orders that one search finds are timed with their messages, the best first."""


class Asked(NamedTuple):
    """What an order is for: its shape and memory, times in seconds, and how messages are sent."""

    ranks: int
    microbatches: int
    limit: float  # stage activations that a rank may hold
    times: Given
    objective: Objective
    policy: str


def one_stage(asked: Asked) -> list[Plan]:
    """Return orders of one stage per rank, the shortest first.

    Raises InputError when there is none in that memory.
    """
    ranks, microbatches, limit, _, objective, _ = asked

    def search(given: Given) -> list[Plan]:
        return zero_bubble_orders(ranks, microbatches, limit, given, objective)

    return _chosen(asked, ranks, search, fitting(by_hand.one_stage(ranks, microbatches), limit))


def in_a_v(asked: Asked) -> list[Plan]:
    """Return orders of two stages per rank in a V, the shortest first; I frees half an activation.

    ``limit`` must be at least two stage activations per rank.
    """
    ranks, microbatches, limit, _, objective, _ = asked

    def search(given: Given) -> list[Plan]:
        return zero_bubble_v(ranks, microbatches, limit, given, objective)

    return _chosen(asked, 2 * ranks, search, fitting(by_hand.in_a_v(ranks, microbatches), limit))


def of_pattern(asked: Asked, pattern: Pattern) -> list[Plan]:
    """Return orders of a pattern of a V, the shortest first; W frees the whole activation."""
    ranks, microbatches, limit = asked[:3]

    def search(given: Given) -> list[Plan]:
        return run_pattern(pattern, microbatches, limit, given)

    own = fitting(by_hand.in_a_v(ranks, microbatches), limit, ALL_AT_WEIGHTS)
    return _chosen(asked, 2 * ranks, search, own)


def _chosen(
    asked: Asked, stages: int, search: Callable[[Given], list[Plan]], own: list[Plan]
) -> list[Plan]:
    """Return the best that a search finds for these times, and for simpler ones, and ``own``.

    So an order that knows how stages and messages differ is never longer than one that does not.
    """
    times, how = asked.times, (exact(asked.times, stages), asked.objective, asked.policy)
    assumed = [times] if is_even(times) else [times, mean(times)]
    if asked.policy == "batched":
        assumed.append(with_waits(times, stages))
    found = [plan for each in assumed for plan in ranked(search(each)[:MOST_TIMED], *how)[:1]]
    return ranked([*found, *own], *how)
