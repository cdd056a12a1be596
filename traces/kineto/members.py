"""Ranks that process groups name and no file is of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sim import units
from traces.kineto.collectives import Met
from traces.kineto.rows import GpuOp
from traces.kineto.steps import named


def missing(met: Iterable[Met], files: Collection[int], world: int) -> tuple[int, ...]:
    """The ranks that messages name, and of which there is no file.

    A group of which only the size is known names them where it is the whole world.
    """
    need: set[int] = set()
    for one in met:
        of = one.message
        need |= {*of.ranks} if of.ranks else {*range(world)} if of.size == world else set()
    return tuple(sorted(need - {*files}))


def warning(met: Sequence[Met], gpu: Mapping[int, Sequence[GpuOp]], lost: Sequence[int]) -> str:
    """What it means that ranks were not read: how many collectives lack one, and how long.

    Those that were read leave such a collective together; how much of the time that all of them
    were in it is waiting for the others cannot be said. A message has one that was read.
    """
    lack = [one for one in met if len(one.members) < (one.expected or len(one.message.ranks))]
    together, some = 0, 0
    for one in lack:
        if rows := [gpu[rank][row] for rank, row in one.members.items() if rank in gpu]:
            together += max(min(r.end for r in rows) - max(r.start for r in rows), 0)
            some += 1
    was, it = ("was", "it") if len(lost) == 1 else ("were", "them")
    said = f"{named('rank', lost)} {was} not read, though process groups name {it}: {len(lack):,} "
    said += f"of {len(met):,} collectives and messages "
    said += f"lack{'s' * (len(lack) == 1)} a member"
    if together:
        mean = units.seconds(together / some / 1e9)
        said += f"; once all that were read are there these take {mean} in the mean, of which "
        said += f"waiting for {it} may be a part"
    return said
