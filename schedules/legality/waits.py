"""Finds what waits for what when ranks exchange messages (:mod:`schedules.legality.deadlock`)."""

from __future__ import annotations

from collections.abc import Sequence

from schedules import Pair, Plan, Step, members
from schedules.input_error import InputError
from schedules.legality.deadlock import WaitGraph, sentence
from schedules.legality.places import Chains, Place

Unit = tuple[int, tuple[Step, ...]]  # a position, and the steps that run there without a pause
Edge = tuple[int, int]  # a node of the graph, and a node that it waits for


def no_deadlock(plan: Plan, chains: Chains, batched: bool, fused: bool) -> None:
    """Raise InputError for ranks that wait for each other for ever.

    With a stream per peer, messages move beside the steps, in an order in which they can be made,
    so they hold no step up. A batched exchange does hold steps up: it stands between two of them
    and ends when all exchanges that it meets have begun.
    """
    units = [_units(items, fused) for items in plan]
    graph = WaitGraph([], [], [])
    node: dict[Step, int] = {}
    for rank, row in enumerate(units):
        for at, (_, steps) in enumerate(row):
            number = graph.add(rank, at, [len(graph.needs) - 1] if at else [])
            node.update(dict.fromkeys(steps, number))
    steps_only = len(graph.needs)
    edges = [
        (number, node[source]) for step, number in node.items() if (source := _input(step, chains))
    ]
    for number, need in _exchange(graph, edges) if batched else edges:
        graph.needs[number].append(need)

    def name(number: int) -> str:
        rank, at = graph.rank[number], graph.at[number]
        return _name(rank, units[rank], at, number >= steps_only)

    if found := sentence(graph, name):
        raise InputError(found)


def _name(rank: int, units: Sequence[Unit], at: int, exchange: bool) -> str:
    position, steps = units[min(at, len(units) - 1)]
    what = str(steps[0] if len(steps) == 1 else Pair(*steps))
    if not exchange:
        return f"{Place(rank, position)}: {what}"
    side = "after" if at == len(units) else "before"
    return f"rank {rank}'s exchange {side} position {position} ({what})"


def _units(items: Sequence[Step | Pair], fused: bool) -> list[Unit]:
    """Return each rank's units: single steps, and fused pairs where pairs are fused."""
    if fused:
        return [(position, members(item)) for position, item in enumerate(items)]
    return [(position, (step,)) for position, item in enumerate(items) for step in members(item)]


def _input(step: Step, chains: Chains) -> Step | None:
    """Return the step of a neighbouring stage that this one needs, if any."""
    stage, kind, m = step
    if kind == "W" or (places := chains.get((stage + (-1 if kind == "F" else 1), m))) is None:
        return None
    if kind == "F":
        return Step(stage - 1, "F", m)
    return Step(stage + 1, "B" if "B" in places else "I", m)


def _exchange(graph: WaitGraph, edges: list[Edge]) -> list[Edge]:
    """Add the exchanges through which ranks get their inputs, and return the edges that are left.

    An exchange before a step takes all that the step needs and all that the step before it made.
    """
    run = {
        (rank, at): node for node, (rank, at) in enumerate(zip(graph.rank, graph.at, strict=True))
    }
    left, meets = list[Edge](), dict[tuple[int, int], dict[tuple[int, int], None]]()
    for node, source in edges:
        if graph.rank[node] == graph.rank[source]:
            left.append((node, source))
            continue
        mine = (graph.rank[node], graph.at[node])
        theirs = (graph.rank[source], graph.at[source] + 1)
        meets.setdefault(mine, {})[theirs] = None
        meets.setdefault(theirs, {})[mine] = None
    begin = {
        (rank, at): graph.add(rank, at, [run[rank, at - 1]] if at else []) for rank, at in meets
    }
    for here, others in meets.items():
        end = graph.add(*here, [begin[here], *(begin[other] for other in others)])
        if here in run:
            graph.needs[run[here]].append(end)
    return left
