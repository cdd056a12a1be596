"""Matches the communication kernels of different ranks that belong together.

Two belong together when they have the same process group and are the same collective on it: the one
with the same sequence number or, where files have no numbers, the k-th one. Sizes show when a
rank's window begins later than the others'. Streams do not help: several groups share one, and a
group may change its stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from traces.kineto.message import CommunicationRecord

Members = dict[int, int]  # rank -> row of its ``trace.gpu``


class Met(NamedTuple):
    """One collective or message, as far as the files have its members."""

    message: CommunicationRecord
    members: Members
    expected: int  # how many members it has in the job, as far as the files tell; 0: unknown


Kernels = list[tuple[int, CommunicationRecord]]


def meet(
    found: Mapping[int, Sequence[tuple[int, CommunicationRecord]]],
    steps: Mapping[int, Sequence[int]] = {},
) -> list[Met]:
    """Match kernels, given per rank as (row, message) in launch order.

    ``steps`` has the number of the training step of each row, if all ranks know it.
    """
    lists: dict[tuple[Hashable, ...], dict[int, Kernels]] = defaultdict(lambda: defaultdict(list))
    for rank, kernels in found.items():
        names = _Groups()
        for row, message in kernels:
            numbered = message.sequence >= 0 and message.collective not in ("send", "recv")
            step = steps[rank][row] if steps and not numbered else None
            lists[*_key(rank, message, names), step][rank].append((row, message))
    out = []
    for by_rank in lists.values():
        table: dict[tuple[bool, int], Members] = defaultdict(dict)
        said: dict[tuple[bool, int], CommunicationRecord] = {}
        longest = max(by_rank.values(), key=len)
        for rank, kernels in by_rank.items():
            begin = _shift(kernels, longest)
            for k, (row, message) in enumerate(kernels, begin):
                pair = message.collective in ("send", "recv")  # numbers count both directions
                numbered = message.sequence >= 0 and not pair
                number = numbered, message.sequence if numbered else k
                table[number][rank] = row
                said.setdefault(number, message)
        out += [Met(said[n], members, _expected(said[n])) for n, members in table.items()]
    return out


def _shift(kernels: Kernels, longest: Kernels) -> int:
    """Return how many more collectives a rank with a longer window saw before this one's first.

    From there on names and sizes must agree. It is 0 if they agree from the start, or nowhere.
    """
    mine, all_ = ([(m.collective, m.elements) for _, m in of] for of in (kernels, longest))
    shifts = range(len(all_) - len(mine) + 1)
    return next((s for s in shifts if all_[s : s + len(mine)] == mine), 0)


def _expected(message: CommunicationRecord) -> int:
    return 2 if message.source >= 0 and message.collective in ("send", "recv") else message.size


def _key(rank: int, message: CommunicationRecord, names: _Groups) -> tuple[Hashable, ...]:
    """Return what this kernel is a member of, except for its number."""
    group = names(message)
    if message.collective not in ("send", "recv"):
        return ("all", group)
    if message.source < 0:
        return ("alone", rank, group)  # the file does not say with whom
    return ("pair", group, message.source, message.target)


class _Groups:
    """Names of one rank's process groups that are the same on other ranks.

    A group is known by its ranks and description; several that are alike, by the order in which
    they are first used. Where ranks are unknown, the size takes their place. An address means
    nothing on another rank.
    """

    def __init__(self) -> None:
        self._seen: dict[Hashable, dict[str, int]] = defaultdict(dict)

    def __call__(self, message: CommunicationRecord) -> Hashable:
        alike = (message.ranks or message.size, message.description)
        names = self._seen[alike]
        return (*alike, names.setdefault(message.group, len(names)))


def complete(met: Iterable[Met], ranks: Iterable[int]) -> tuple[int, int]:
    """Return how many collectives there are, and in how many of them every rank takes part.

    Only ranks that were read count. A collective that needs at most one of these has no partner to
    be matched with, and counts as matched.
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
