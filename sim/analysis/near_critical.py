"""The chains of ops that would decide the step if the critical path were a little shorter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.analysis.relations import binding, rendezvous
from sim.analysis.slack import Slack, slack
from sim.timeline import Timeline

ROUNDING = 1e-12
"""Slack below this share of the step counts as none, since sums of times are rounded."""


class Chain(NamedTuple):
    """The ops with the least slack off the critical path and off earlier chains, first to last."""

    slack: float
    """Seconds by which the longest way through these ops is shorter than the critical path."""
    ops: tuple[int, ...]
    leaves: int
    """The op before the first, without slack or of an earlier chain; -1 if there is none."""
    joins: int
    """Such an op after the last; -1 where the timeline ends."""


def near_critical(timeline: Timeline, most: int = 5, of: Slack | None = None) -> list[Chain]:
    """Find chains of ops that would decide the step if the critical path were a little shorter.

    Up to ``most`` chains of ops that have slack, the least slack first. Each is the longest way
    through the op with the least slack that is on no chain yet. It ends where it meets an earlier
    chain or a critical path, of which there may be several. An op that takes no time begins none.
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
    """Return the chain through an op, up to ops that are taken, and mark its own as taken."""
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
