"""Checks the messages written in an order: both ends there, one order per stream, no deadlock."""

from __future__ import annotations

from collections.abc import Iterator

from schedules import Pair, Step, members
from schedules.csv import Move, Rows
from schedules.input_error import InputError
from schedules.legality.deadlock import WaitGraph, sentence

Stream = tuple[int, ...]  # (sender, receiver), or the two ranks of a pair, ascending
At = dict[Step | Move, tuple[int, int]]  # rank and position


def check_messages(rows: Rows, policy: str = "direction") -> None:
    """Raise InputError for messages that do not fit their steps or each other.

    ``policy`` says which messages share a stream: those of a pair of ranks, or those of one
    direction of it (see :func:`schedules.require_legal`). A send or receive begins where it stands,
    after all steps before it, and neither the rank nor its other streams wait for it. A message
    moves when both its ends are first in their streams. So both ends of a stream must take its
    messages in one order.
    """
    if policy not in ("direction", "pair"):
        raise InputError(
            f"single sends and receives cannot be {policy!r}; use policy direction or pair"
        )
    at = _places(rows)
    for action, place in at.items():
        if isinstance(action, Move):
            _has_two_ends(action, place, at)
        else:
            _has_its_input(action, place, at)
    streams = _streams(at, policy == "pair")
    for stream in sorted(streams):
        _agree(stream, streams[stream], at, policy)
    graph, where = _waits(rows, at)
    if found := sentence(graph, lambda node: _where(rows, *where[node])):
        raise InputError(found)


def _places(rows: Rows) -> At:
    at: At = {}
    for rank, row in enumerate(rows):
        for position, action in enumerate(row):
            for part in (action,) if isinstance(action, Move) else members(action):
                if part in at:
                    raise InputError(
                        f"{_where(rows, rank, position)} is there twice, "
                        f"first at position {at[part][1]} of rank {at[part][0]}"
                    )
                at[part] = (rank, position)
    return at


def _where(rows: Rows, rank: int, position: int) -> str:
    return f"rank {rank}, position {position}: {rows[rank][position]}"


def _step(move: Move, at: At) -> Step | None:
    """Return the step that makes what is sent, or needs what is received; None if there is none."""
    kinds = "F" if move.kind == "F" else "BI"
    return next((s for k in kinds if (s := Step(move.stage, k, move.microbatch)) in at), None)


def _has_two_ends(move: Move, place: tuple[int, int], at: At) -> None:
    here = f"rank {place[0]}, position {place[1]}: {move}"
    step = _step(move, at)
    if step is None or at[step][0] != place[0]:
        raise InputError(f"{here} belongs to no step of this rank")
    if move.other not in at:
        raise InputError(f"{here} has no other end; no rank has {move.other}")
    if at[move.other][0] == place[0]:
        raise InputError(f"{here} stays on its rank, where no message is needed")
    if (at[step][1] < place[1]) != (move.end == "SEND"):
        wrong = "before" if move.end == "SEND" else "after"
        raise InputError(f"{here} comes {wrong} its step {step}, position {at[step][1]}")


def _has_its_input(step: Step, place: tuple[int, int], at: At) -> None:
    if step.kind == "W":
        return
    (receive,) = _received(step)
    source = _step(receive.other, at)
    if source and at[source][0] != place[0] and receive not in at:
        raise InputError(
            f"rank {place[0]}, position {place[1]}: {step} needs {receive} before it, "
            "but the rank has none"
        )


def _streams(at: At, pair: bool) -> dict[Stream, tuple[list[Move], list[Move]]]:
    """Return the messages of each stream, in the order of its one end and in that of the other."""
    out: dict[Stream, tuple[list[Move], list[Move]]] = {}
    for move, (rank, _) in at.items():
        if isinstance(move, Move):
            peer = at[move.other][0]
            ends = (rank, peer) if move.end == "SEND" else (peer, rank)
            stream = tuple(sorted(ends)) if pair else ends
            out.setdefault(stream, ([], []))[rank != stream[0]].append(move)
    return out


def _agree(stream: Stream, ends: tuple[list[Move], list[Move]], at: At, policy: str) -> None:
    for index, (one, other) in enumerate(zip(*ends, strict=True)):
        if one.other != other:
            arrow = " and " if policy == "pair" else " → "
            raise InputError(
                f"ranks {stream[0]}{arrow}{stream[1]}, message {index} of their stream "
                f"(p2p {policy}): rank {stream[0]}, position {at[one][1]}: {one} stands against "
                f"rank {stream[1]}, position {at[other][1]}: {other}; "
                "both ends must take messages in one order"
            )


def _waits(rows: Rows, at: At) -> tuple[WaitGraph, list[tuple[int, int]]]:
    """Return the graph of waits, and where each node stands.

    Its nodes are the steps, and the beginning and end of each send and receive. As both ends of a
    stream agree on its order, those before a message have begun at both ends when it begins.
    """
    graph, where = WaitGraph([], [], []), list[tuple[int, int]]()
    begin, end, run = dict[Move, int](), dict[Move, int](), dict[int, Step | Pair]()
    for rank, row in enumerate(rows):
        last: list[int] = []
        for position, action in enumerate(row):
            node = graph.add(rank, position, list(last))
            if isinstance(action, Move):
                begin[action] = node
                end[action] = graph.add(rank, position, [node])
                where.append((rank, position))
            else:
                run[node], last = action, [node]
            where.append((rank, position))
    for move, node in end.items():
        graph.needs[node].append(begin[move.other])
    for node, action in run.items():
        graph.needs[node] += [end[receive] for receive in _received(action) if receive in at]
    return graph, where


def _received(action: Step | Pair) -> Iterator[Move]:
    for step in members(action):
        if step.kind != "W":
            yield Move(step.stage, "RECV", "F" if step.kind == "F" else "B", step.microbatch)
