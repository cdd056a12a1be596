"""Finds ranks that process groups name but that no file is of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from sim import units
from traces.kineto.collectives import Met
from traces.kineto.rows import GpuOp
from traces.kineto.steps import named


def missing(met: Iterable[Met], files: Collection[int], world: int) -> tuple[int, ...]:
    """Return the ranks that messages name and of which there is no file.

    A group of known size but unknown ranks names all ranks if its size is that of the world.
    """
    need: set[int] = set()
    for one in met:
        of = one.message
        need |= {*of.ranks} if of.ranks else {*range(world)} if of.size == world else set()
    return tuple(sorted(need - {*files}))


def warning(met: Sequence[Met], gpu: Mapping[int, Sequence[GpuOp]], lost: Sequence[int]) -> str:
    """Say what it means that ranks were not read: how many collectives lack one, and how long.

    The ranks that were read leave such a collective together. How much of the time that all of them
    were in it is waiting for the others is unknown. A message has at least one rank that was read.
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
        said += f"; once all ranks that were read have begun, these take {mean} on average, part "
        said += f"of which may be waiting for {it}"
    return said
