"""Finds what waits for itself, and says it in words as a short cycle of waits.

What waits is a node, given by its number; a graph lists for each node the nodes that it waits for.
Everything can run exactly when there is no cycle, however long each node takes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

TRIED = 8  # how many nodes of a cycle are tried as the start of a shorter one
SAID = 12  # the message names at most so many waits of a cycle


class WaitGraph(NamedTuple):
    """Nodes: for each its rank, its place in the order of that rank, and what it waits for."""

    rank: list[int]
    at: list[int]
    needs: list[list[int]]

    def across(self, node: int, need: int) -> bool:
        """Return whether something other than its rank's order makes ``node`` wait for ``need``."""
        return self.rank[node] != self.rank[need] or self.at[need] > self.at[node]

    def add(self, rank: int, at: int, needs: list[int]) -> int:
        """Add a node and return its number."""
        self.rank.append(rank)
        self.at.append(at)
        self.needs.append(needs)
        return len(self.needs) - 1


def sentence(graph: WaitGraph, name: Callable[[int], str]) -> str:
    """Say one cycle of waits in words, or return "" where there is none.

    ``name`` says what a node does.

    >>> sentence(WaitGraph(rank=[0, 1], at=[0, 0], needs=[[1], [0]]), "step {}".format)
    'deadlock: step 0 waits for step 1, which waits for step 0'
    """
    cycle = _shortest(graph)
    if not cycle:
        return ""
    words = list[str]()
    begins = cycle[0]  # the first node of those that follow by the order of their rank alone
    for k, (node, need) in enumerate(pairwise(cycle)):
        follows = k + 2 < len(cycle) and not graph.across(cycle[k + 1], cycle[k + 2])
        if graph.across(node, need):
            words.append(f"waits for {name(need)}")
            begins = need
        elif not follows and graph.at[need] != graph.at[begins]:
            words.append(f"comes after {name(need)}")
    if len(words) > SAID:
        words[SAID:] = [f"is one of {len(words) - SAID} more waits that lead back to the first"]
    return f"deadlock: {name(cycle[0])} {', which '.join(words)}"


def _shortest(graph: WaitGraph) -> list[int]:
    """Return a cycle, its first node also last; of those tried, one with fewest waits across."""
    stuck = _stuck(graph)
    if not stuck:
        return []
    path = {min(stuck): 0}
    node = min(stuck)
    while True:
        node = next(need for need in graph.needs[node] if need in stuck)
        if node in path:
            break
        path[node] = len(path)
    cycle = [*list(path)[path[node] :], node]
    starts = [a for a, b in pairwise(cycle) if graph.across(a, b)][:TRIED]
    found = [_through(graph, start, stuck) for start in starts] or [cycle]
    return min(found, key=lambda cycle: (_cost(graph, cycle), len(cycle)))


def _cost(graph: WaitGraph, cycle: Sequence[int]) -> int:
    return sum(graph.across(*edge) for edge in pairwise(cycle))


def _stuck(graph: WaitGraph) -> set[int]:
    """Return what is left when everything has run that can."""
    waits = [len(needs) for needs in graph.needs]
    later: list[list[int]] = [[] for _ in waits]
    for node, needs in enumerate(graph.needs):
        for need in needs:
            later[need].append(node)
    ready = [node for node, count in enumerate(waits) if not count]
    for node in ready:  # grows as it goes
        for after in later[node]:
            waits[after] -= 1
            if not waits[after]:
                ready.append(after)
    return set(range(len(waits))).difference(ready) if len(ready) < len(waits) else set()


def _through(graph: WaitGraph, start: int, stuck: set[int]) -> list[int]:
    """Return the cycle through ``start`` with the fewest waits across."""
    cost, came = {start: 0}, dict[int, int]()
    queue, done = deque([start]), set[int]()
    while queue:
        node = queue.popleft()
        if node in done:
            continue
        done.add(node)
        for need in graph.needs[node]:
            across = graph.across(node, need)
            if need in stuck and cost[node] + across < cost.get(need, len(graph.needs)):
                cost[need], came[need] = cost[node] + across, node
                (queue.append if across else queue.appendleft)(need)
    last = min(
        (node for node in sorted(done) if start in graph.needs[node]),
        key=lambda node: cost[node] + graph.across(node, start),
    )
    back = [start, last]
    while back[-1] != start:
        back.append(came[back[-1]])
    return back[::-1]
