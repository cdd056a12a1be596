"""Makes the graph of a step, on all ranks, from what one rank of torch's fake group has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sim.graph import Builder, Communication, Compute, Graph

Event = Mapping[str, Any]


def graph(events: Sequence[Event], world: int, tp: int) -> Graph:
    """Return the step on all ranks, each of which does in its groups what rank 0 did.

    Collectives of tensor parallelism stand between the products before and after them. FSDP's run
    on a stream of their own: what is gathered is needed once the next gather has been issued or, in
    the last unit of a backward, once the unit before is reduced (FSDP2's prefetch).
    """
    builder = Builder()
    last: list[list[int]] = [[] for _ in range(world)]  # what a rank's next op waits for
    gathered: list[list[int]] = []  # gathers of the backward that no product waits for yet
    for event in events:
        if "collective" not in event:
            _products(builder, event, last)
            continue
        dimension = _dimension(event["ranks"], world, tp)
        ops = _collective(builder, event, tp, dimension, last)
        if dimension != "dp":
            last = [[op] for op in ops]
            continue
        backward, gathers = event["phase"] == "B", event["collective"] == "all_gather"
        due = [gathered.pop()] if backward and gathered else [] if backward else [ops]
        for waited in due:
            for rank, op in enumerate(waited):
                last[rank].append(op)
        if backward and gathers:
            gathered.append(ops)
    return builder.graph()


def _products(builder: Builder, event: Event, last: list[list[int]]) -> None:
    work = Compute(
        event["kind"], float(event["flops"]), float(event["bytes"]), tuple(event["shape"]),
        event["dtype"],
    )  # fmt: skip
    for rank, waits in enumerate(last):
        op = builder.add(event["op"], rank, "compute", work, waits, phase=event["phase"])
        last[rank] = [op]


def _collective(
    builder: Builder, event: Event, tp: int, dimension: str, last: list[list[int]]
) -> list[int]:
    """Add one op per rank, joined within each group; each waits for its rank's work before."""
    stream = {"dp": "fsdp nccl"}.get(dimension, dimension)
    gathers = dimension == "dp" and event["collective"] == "all_gather"
    groups: dict[tuple[int, ...], list[int]] = {}
    out = []
    for rank, before in enumerate(last):
        ranks = _group(event["ranks"], rank, tp, dimension)
        work = Communication(event["collective"], float(event["bytes"]), ranks, dimension)
        waits = [] if gathers else before
        out.append(builder.add(event["op"], rank, stream, work, waits, phase=event["phase"]))
        groups.setdefault(ranks, []).append(out[-1])
    for members in groups.values():
        builder.join(members)
    return out


def _dimension(ranks: Sequence[int], world: int, tp: int) -> str:
    """Return the dimension of a group of rank 0."""
    if len(ranks) == world and 1 < tp < world:
        return "model"
    return "tp" if tp > 1 and max(ranks) < tp else "dp"


def _group(ranks: Sequence[int], rank: int, tp: int, dimension: str) -> tuple[int, ...]:
    """Return the group of a rank that corresponds to one of rank 0."""
    shift = {"tp": rank - rank % tp, "dp": rank % tp}.get(dimension, 0)
    return tuple(other + shift for other in ranks)
