"""The p2p ops of one rank, under each policy of :mod:`sim.builder.strategies.messages`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sim.builder.strategies.given import Exchange
from sim.builder.strategies.messages import Messages, Steps, issue_keys, iterations
from sim.graph import Bools, Longs


@dataclass(frozen=True)
class Policy:
    """How ranks exchange messages.

    ``paired``: batched exchanges come after a forward and the backward after it (Megatron-LM's
    interleaved schedule). ``ahead``: a receive is issued when the step begins that comes this many
    before the one that needs it (Megatron-LM's ``overlap_p2p_comm``: 1; without overlap: 0); None
    issues every receive as soon as its stream is free.
    """

    name: str  # direction | pair | batched
    paired: bool = False
    ahead: int | None = None


Outputs = Callable[[int], Sequence[int]]  # from a step of the rank to its last ops
Awaited = tuple[int, int]  # a step of the rank, and one of its outputs


def exchange(
    policy: Policy,
    steps: Steps,
    sent: Messages,
    torch: Longs,
    rank: int,
    peers: Sequence[int],
    outputs: Outputs,
) -> Exchange:
    """Return the p2p ops of pipeline rank ``rank``; ``peers`` are the ranks along the pipeline.

    On streams there is one op per end of a parcel: sends after their block, receives before their
    first use. A parcel is a message, or the two that a fused pair sends to one rank.
    """
    if policy.name == "batched":
        return _batched(policy, steps, sent, rank, outputs)
    out = _parcels(sent, steps.rank[sent.source] == rank)
    into = _parcels(sent, steps.rank[sent.target] == rank)
    carried = [*out, *into]
    head = np.array([messages[0] for messages in carried], np.int64)
    is_send = np.arange(len(carried)) < len(out)
    needed = [int(steps.first[sent.target[list(messages)]].min()) for messages in into]
    step = np.concatenate([steps.done[sent.source[head[: len(out)]]], np.array(needed, np.int64)])
    end, other_end = (
        np.where(is_send, sent.source[head], sent.target[head]),
        np.where(is_send, sent.target[head], sent.source[head]),
    )
    peer = steps.rank[other_end]
    own = np.where(is_send, 3 * step + 2, 3 * step)
    pair = policy.name == "pair"
    stream_key = peer if pair else 2 * peer + is_send
    place = torch[head] if pair else head  # messages are in the sender's order already
    key = own.copy()
    for s in np.unique(stream_key):
        members = np.flatnonzero(stream_key == s)
        key[members] = issue_keys(own[members], place[members])
    order = np.lexsort((place, key))
    gate = np.full(int(steps.begins[rank + 1] - steps.begins[rank]), -1)
    rows = order.tolist()
    for number, k in enumerate(rows):
        if not is_send[k]:
            gate[steps.index[sent.target[list(carried[k])]]] = number
    waits = [
        _made(int(step[k]), outputs) if is_send[k] else _posted(policy, int(key[k]) // 3, outputs)
        for k in rows
    ]
    return Exchange(
        key[order],
        [_name(bool(is_send[k]), steps, sent, carried[k]) for k in rows],
        [_stream(pair, bool(is_send[k]), peers[int(peer[k])]) for k in rows],
        steps.stage[end[order]],
        steps.microbatch[end[order]],
        steps.update[end[order]],
        waits,
        [carried[k] for k in rows],
        gate,
    )


def nothing(steps: int) -> Exchange:
    """Return no p2p ops, for a rank with this many steps."""
    none = np.empty(0, np.int64)
    return Exchange(none, [], [], none, none, none, [], [], np.full(steps, -1))


def exchange_phase(name: str) -> str:
    """Return the phase of a p2p op of this name; "" if it moves activations and gradients."""
    what = {word.partition("_")[2] for word in name.split()}
    return {"activation": "F", "gradient": "I"}.get(what.pop(), "") if len(what) == 1 else ""


def _parcels(sent: Messages, those: Bools) -> list[tuple[int, ...]]:
    """Return the messages of each parcel, in the order of their first message."""
    out: dict[int, tuple[int, ...]] = {}
    for message in np.flatnonzero(those).tolist():
        parcel = int(sent.parcel[message])
        out[parcel] = (*out.get(parcel, ()), message)
    return list(out.values())


def _name(is_send: bool, steps: Steps, sent: Messages, carried: tuple[int, ...]) -> str:
    forward = [bool(steps.kind[sent.source[k]] == "F") for k in carried]
    what = "_and_".join(["activation"] * any(forward) + ["gradient"] * (not all(forward)))
    return f"{'send' if is_send else 'recv'}_{what}"


def _stream(pair: bool, is_send: bool, peer: int) -> str:
    if pair:
        return f"pp pair {peer}"
    return f"pp send →{peer}" if is_send else f"pp recv ←{peer}"


def _made(step: int, outputs: Outputs) -> tuple[Awaited, ...]:
    return tuple((step, op) for op in outputs(step))


def _posted(policy: Policy, step: int, outputs: Outputs) -> tuple[Awaited, ...]:
    """Return what a receive issued before ``step`` waits for, if anything."""
    if policy.ahead is None or step - 1 - policy.ahead < 0:
        return ()
    before = step - 1 - policy.ahead
    return tuple((before, op) for op in outputs(before)[:1])


def _batched(policy: Policy, steps: Steps, sent: Messages, rank: int, outputs: Outputs) -> Exchange:
    """Return one op between two iterations for everything that is sent and received there."""
    iteration = iterations(steps, rank, policy.paired)
    batches, names = _batches(policy, steps, sent, rank, iteration)
    last = len(batches) - 1
    begins = np.searchsorted(iteration, np.arange(last + 1))  # first step of each iteration
    used = [i for i, batch in enumerate(batches) if batch]
    number = np.full(last + 1, -1)
    number[used] = np.arange(len(used))
    after = begins[used]  # the step issued after each exchange
    beside = steps.beside[steps.begins[rank] : steps.begins[rank + 1]].tolist()
    waits = [_made_before(beside, step, outputs) for step in after.tolist()]
    before = np.maximum(after - 1, 0) + steps.begins[rank]
    return Exchange(
        3 * after,
        [names[i] for i in used],
        ["pp"] * len(used),
        steps.stage[before],
        steps.microbatch[before],
        steps.update[before],
        waits,
        [tuple(batches[i]) for i in used],
        number[iteration],
    )


def _batches(
    policy: Policy, steps: Steps, sent: Messages, rank: int, iteration: Longs
) -> tuple[list[list[int]], list[str]]:
    """Return the messages before each iteration and after the last, and what each batch exchanges.

    That is a name such as "send_activation recv_gradient".
    """
    count = int(iteration[-1]) + 2
    batches: list[list[int]] = [[] for _ in range(count)]
    words: list[set[str]] = [set() for _ in range(count)]
    out = np.flatnonzero(steps.rank[sent.source] == rank)
    into = np.flatnonzero(steps.rank[sent.target] == rank)
    left = iteration[steps.index[sent.source[out]]] + 1
    taken = iteration[_taken(policy, steps, sent, into, rank)]
    for name, messages, at in (("send", out, left), ("recv", into, taken)):
        forward = steps.kind[sent.source[messages]] == "F"
        what = np.where(forward, f"{name}_activation", f"{name}_gradient").tolist()
        for k, i, word in zip(messages.tolist(), at.tolist(), what, strict=True):
            batches[i].append(k)
            words[i].add(word)
    return batches, [" ".join(sorted(of, reverse=True)) for of in words]


def _made_before(beside: Sequence[bool], step: int, outputs: Outputs) -> tuple[Awaited, ...]:
    """Return what the step before makes and, of a shared pair, the forward beside it."""
    if not step:
        return ()
    made = _made(step - 1, outputs)
    return (*_made(step - 2, outputs), *made) if beside[step - 1] else made


def _taken(policy: Policy, steps: Steps, sent: Messages, into: Longs, rank: int) -> Longs:
    """Return the step of a rank before which it takes each message, usually the one that needs it.

    In Megatron-LM's interleaved schedule all ranks move on together, so what comes round from the
    other end of the pipeline is taken when it is sent, even if other microbatches go first here.
    """
    step, source, p = steps.index[sent.target[into]], sent.source[into], len(steps.begins) - 1
    if not policy.paired or rank not in (0, p - 1):
        return step
    alike = (steps.kind == "F") == (rank == 0)  # rank 0 gets forwards, rank p - 1 gradients
    mine, theirs = (np.flatnonzero(alike & (steps.rank == r)) for r in (rank, p - 1 - rank))
    round_ = np.flatnonzero(alike[source] & (steps.rank[source] == p - 1 - rank))
    turn = np.minimum(np.searchsorted(theirs, source[round_]) + p, len(mine) - 1)
    step[round_] = np.minimum(step[round_], steps.index[mine[turn]])
    return step
