"""Which chains of ops would decide the step next, were the critical path a little shorter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.analysis.relations import binding, rendezvous
from sim.analysis.slack import Slack, slack
from sim.timeline import Timeline

ROUNDING = 1e-12
"""Slack below this share of the step is none: sums of times are rounded."""


class Chain(NamedTuple):
    """Ops off the critical path (and off the chains before) with the least slack, first to last."""

    slack: float
    """Seconds by which the longest way through these ops is shorter than the critical path."""
    ops: tuple[int, ...]
    leaves: int
    """The op without slack, or of a chain before this, that the first follows; -1 if none."""
    joins: int
    """Such an op that follows the last; -1 where the timeline ends."""


def near_critical(timeline: Timeline, most: int = 5, of: Slack | None = None) -> list[Chain]:
    """Find chains of ops that would decide the step were the critical path a little shorter.

    Up to ``most`` chains, by slack, of ops that have any. Each is the longest way through the op
    with the least slack that is on none yet, as far as it is apart from those before it and from
    the critical paths, of which there may be several; ops that take no time begin none.
    """
    if not len(timeline.graph) or most < 1:
        return []
    found = slack(timeline) if of is None else of
    needs, (arrival, _) = binding(timeline), rendezvous(timeline)
    taken = found.seconds <= ROUNDING * timeline.seconds
    chains: list[Chain] = []
    some = np.flatnonzero(timeline.end > timeline.start)
    for i in some[np.lexsort((some, found.seconds[some]))].tolist():
        if len(chains) == most:
            break
        if not taken[i]:
            chains.append(_through(i, found, needs, arrival, taken))
    return chains


def _through(
    i: int, found: Slack, needs: np.ndarray, arrival: np.ndarray, taken: np.ndarray
) -> Chain:
    """The chain through an op, up to ops that are taken; its own are taken then."""
    before, at = [], int(needs[i])
    taken[i] = True
    while at >= 0 and not taken[came := int(arrival[at])]:
        before.append(came)
        taken[came] = True
        at = int(needs[came])
    after, behind = [i], int(found.behind[i])
    while behind >= 0 and not taken[behind]:
        after.append(behind)
        behind = int(found.behind[behind])
    ops = (*reversed(before), *after)
    taken[after] = True
    leaves = int(arrival[at]) if at >= 0 else -1
    return Chain(float(found.seconds[i]), ops, leaves, behind)
