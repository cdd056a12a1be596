"""Communication kernels of different ranks that belong together.

Two belong together when their process groups are one and they are the same collective on it: the
same sequence number, or where files have none, the k-th. Streams say nothing: several groups share
one, and a group may change its stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from traces.kineto.message import Message

Members = dict[int, int]  # rank -> row of its ``trace.gpu``


class Met(NamedTuple):
    """One collective or message, as far as the files have its members."""

    message: Message
    members: Members
    expected: int  # members that it has in the job, as far as the files tell; 0: unknown


def meet(found: Mapping[int, Sequence[tuple[int, Message]]]) -> list[Met]:
    """Match kernels, given per rank as (row, message) in launch order."""
    table: dict[Hashable, Members] = defaultdict(dict)
    said: dict[Hashable, Message] = {}
    for rank, kernels in found.items():
        names = _Groups()
        count: dict[Hashable, int] = defaultdict(int)
        for row, message in kernels:
            for key in _keys(rank, message, names):
                numbered = message.sequence >= 0 and key[0] != "pair"
                number = message.sequence if numbered else count[key]
                count[key] += 1
                table[*key, numbered, number][rank] = row
                said.setdefault((*key, numbered, number), message)
    return [Met(said[key], members, _expected(said[key])) for key, members in table.items()]


def _expected(message: Message) -> int:
    return 2 if message.source >= 0 and message.collective in ("send", "recv") else message.size


def _keys(rank: int, message: Message, names: _Groups) -> Iterator[tuple[Hashable, ...]]:
    """What this kernel is a member of, but for its number."""
    group = names(message)
    if message.collective in ("send", "recv") and message.source >= 0:
        yield ("pair", group, message.source, message.target)
    elif message.collective in ("send", "recv"):
        yield ("alone", rank, group)  # nobody says with whom
    else:
        yield ("all", group)


class _Groups:
    """Names of one rank's process groups that other ranks give them too.

    Ranks and description tell a group; of several alike, the order in which they are first used.
    Where no ranks are known, so does the size. An address means nothing on another rank.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, dict[str, int]] = defaultdict(dict)

    def __call__(self, message: Message) -> Hashable:
        alike = (message.ranks or message.size, message.description)
        names = self._seen[alike]
        return (*alike, names.setdefault(message.group, len(names)))


def complete(met: Iterable[Met], ranks: Iterable[int]) -> tuple[int, int]:
    """How many collectives there are, and of how many every rank that was read is a member.

    A collective that needs one of the ranks at most has nobody to be matched with, and counts as
    matched.
    """
    there = set(ranks)
    total = matched = 0
    for one in met:
        total += 1
        if one.message.source >= 0 and one.message.collective in ("send", "recv"):
            needed = there & {one.message.source, one.message.target}
        elif one.message.ranks:
            needed = there & {*one.message.ranks}
        else:
            needed = set(sorted(there)[: one.expected]) if one.expected else there
            matched += len(one.members) >= len(needed)
            continue
        matched += needed <= one.members.keys()
    return total, matched
