"""Lanes that stay alike although some ranks of a job differ.

A slow rank holds up those that it meets, and these hold up others, each by its own time. Two lanes
stay alike if their ranks are alike and their groups have as many members of each class, on each
axis. Colour refinement finds the fewest such classes: lanes begin with the kinds of their ranks,
and are parted by the classes of those with which they share groups, until nothing changes. Then all
groups of the same classes start at the same times, and one lane of each class stands for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sim.builder.groups import Atom, Lane, shifted
from sim.builder.job import Job
from sim.machine.hashes import Hashes, mix, mixed, multisets

Integers = NDArray[np.int64]


class Alike:
    """The lanes of a job in classes: ``of`` has that of each lane, as :attr:`Job.grid` counts."""

    def __init__(self, job: Job, of: Integers) -> None:
        self.job, self.of = job, of
        _, self._first, self._count = np.unique(of, return_index=True, return_counts=True)

    def __len__(self) -> int:
        return len(self._first)

    def simulated(self) -> list[Lane]:
        """Return the first lane of each class."""
        ranks = self.job.ranks[..., 0]
        at = np.empty(ranks.size, np.int64)
        at[self.job.places[0][ranks.ravel()]] = np.arange(ranks.size)
        places = np.unravel_index(at[self._first], ranks.shape)
        return sorted(
            Lane(*place) for place in zip(*(axis.tolist() for axis in places), strict=True)
        )

    def stands_for(self) -> dict[int, int]:
        """Return how many ranks each simulated rank stands for."""
        first = self.job.grid[self._first]
        pairs = zip(first.tolist(), self._count.tolist(), strict=True)
        return {rank: count for ranks, count in pairs for rank in ranks}

    def stand_ins(self) -> Integers:
        """Return the rank that is simulated for each rank of the job, shape (ranks,)."""
        out = np.empty(self.job.grid.size, np.int64)
        out[self.job.grid] = self.job.grid[self._first[self.of]]
        return out

    def of_rank(self) -> Integers:
        """Return the class of each rank's lane, shape (ranks,)."""
        return self.of[self.job.places[0]]

    def looks(self, groups: Integers) -> Hashes:
        """Return a hash of the classes and stages in each group, given their ranks as rows."""
        lane, stage = self.job.places
        return multisets(self.of[lane[groups]] * self.job.mesh.pp + stage[groups])


def meetings(
    job: Job, over: Sequence[Atom], names: Collection[str], groups: Iterable[tuple[int, ...]]
) -> list[Integers]:
    """Return the lanes that meet in the groups of a job, each list of shape (groups, ranks).

    ``groups`` has one of each kind of group, whose others are its images along the atoms ``names``.
    """
    lane, _ = job.places
    out: dict[bytes, Integers] = {}
    for ranks in groups:
        lanes = np.sort(lane[shifted(job, names, ranks, over)], axis=1)
        if (lanes != lanes[:, :1]).any():
            out.setdefault(np.sort(mixed(lanes)).tobytes(), lanes)
    return list(out.values())


def classes(
    job: Job,
    over: Sequence[Atom],
    names: Collection[str],
    kinds: Integers,
    met: Sequence[Integers],
) -> Alike:
    """Return the fewest classes of lanes that stay alike, of those that differ in ``names`` alone.

    ``kinds`` has a number for each rank, and ``met`` the lanes of each group.
    """
    colour = mixed(np.column_stack([_unshifted(job, over, names), kinds[job.grid]]))
    found = 0
    while (now := len(np.unique(colour))) > found:
        found, seen = now, np.zeros(len(colour), np.uint64)
        for k, lanes in enumerate(met):
            look = mix(multisets(colour[lanes].view(np.int64)) ^ mix(np.array([k], np.uint64)))
            np.add.at(seen, lanes, np.broadcast_to(look[:, None], lanes.shape))
        colour = mix(colour ^ mix(seen))
    _, of = np.unique(colour, return_inverse=True)
    return Alike(job, np.asarray(of, np.int64))


def _unshifted(job: Job, over: Sequence[Atom], names: Collection[str]) -> Integers:
    """Return for each lane the one to which shifts along some atoms take it, shape (lanes,)."""
    sizes = [atom.size for atom in over][::-1]
    at = np.array(np.unravel_index(np.arange(len(job.grid)), sizes))
    at[[k for k, atom in enumerate(over[::-1]) if atom.name in names]] = 0
    return np.asarray(np.ravel_multi_index(tuple(at), sizes), np.int64)
