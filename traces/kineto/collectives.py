"""Communication kernels of different ranks that belong together.

Two belong together when their process groups are one and they are the same collective on it: the
same sequence number, or where files have none, the k-th; a rank whose window begins later is known
by the sizes. Streams say nothing: several groups share one, and a group may change its stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

from traces.kineto.message import Message

Members = dict[int, int]  # rank -> row of its ``trace.gpu``


class Met(NamedTuple):
    """One collective or message, as far as the files have its members."""

    message: Message
    members: Members
    expected: int  # members that it has in the job, as far as the files tell; 0: unknown


Kernels = list[tuple[int, Message]]


def meet(
    found: Mapping[int, Sequence[tuple[int, Message]]],
    steps: Mapping[int, Sequence[int]] = {},
) -> list[Met]:
    """Match kernels, given per rank as (row, message) in launch order.

    ``steps``: the number of the training step of each row, where all ranks know it.
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
        said: dict[tuple[bool, int], Message] = {}
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
    """How many more a rank with a longer window saw before: names and sizes must agree from there.

    0 where they agree from the start, or nowhere.
    """
    mine, all_ = ([(m.collective, m.elements) for _, m in of] for of in (kernels, longest))
    shifts = range(len(all_) - len(mine) + 1)
    return next((s for s in shifts if all_[s : s + len(mine)] == mine), 0)


def _expected(message: Message) -> int:
    return 2 if message.source >= 0 and message.collective in ("send", "recv") else message.size


def _key(rank: int, message: Message, names: _Groups) -> tuple[Hashable, ...]:
    """What this kernel is a member of, but for its number."""
    group = names(message)
    if message.collective not in ("send", "recv"):
        return ("all", group)
    if message.source < 0:
        return ("alone", rank, group)  # nobody says with whom
    return ("pair", group, message.source, message.target)


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
