"""Which ranks of a job form the group of an axis, and which lanes of ranks repeat each other.

A *lane* is one rank of every pipeline stage: a coordinate on each of the axes tp, cp and dp. Groups
are products of *atoms*, the factors into which all groups cut the lanes: with tp = 4, 2 KV heads
and dp = 6 the lanes are 2 x 2 x 6, since ranks with the same KV heads are a group of 2 inside tp.
Shifting all lanes along an atom maps every group onto a group.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from sim import strategies
from sim.builder.job import Job
from sim.machine.hashes import multisets

DENSE = ("tp", "cp", "dp")


class Lane(NamedTuple):
    """The coordinates of a lane."""

    tp: int
    cp: int
    dp: int


class Atom(NamedTuple):
    """One factor of the lanes."""

    name: str  # its axis; a part of an axis has a number too, 0 for the innermost
    axis: str
    size: int
    able: bool  # whether lanes that differ only in it run the same programs


def group(job: Job, axis: str, lane: Lane, q: int) -> tuple[int, ...]:
    """Return the ranks of the group on an axis, for the rank of this lane and pipeline rank ``q``.

    It lists ranks of the job.
    """
    ranks = job.ranks
    for of in strategies.hooks("group"):
        if (own := of(job, axis, lane, q)) is not None:
            return tuple(own)
    match axis:
        case "dp":  # dense gradients: ranks of one sequence have the same weights too
            return tuple(sorted(ranks[lane.tp, :, :, q].ravel().tolist()))
        case "shard" | "replicate":
            replicas = group(job, "dp", lane, q)
            return replicas[_shards(job, axis, replicas.index(int(ranks[*lane, q])))]
        case "edp_shard" | "edp_replicate":
            rank = int(ranks[*lane, q])
            copies, n = job.mesh.group_of(rank, "edp"), job.data.of_experts.optimizer_split
            at = copies.index(rank)
            begin = at - at % n
            return copies[at % n :: n] if axis == "edp_replicate" else copies[begin : begin + n]
        case "model":
            return _norm(job, lane)
        case "stage_norm":
            return tuple(sorted({*_norm(job, lane)} & {*job.ranks[..., q].ravel().tolist()}))
    return job.mesh.group_of(int(ranks[*lane, q]), axis)


def _shards(job: Job, axis: str, replica: int) -> slice:
    """Return the replicas that share one's shards (a run of them) or hold the same shard."""
    n = job.data.optimizer_split
    if axis == "replicate":
        return slice(replica % n, None, n)
    begin = replica - replica % n
    return slice(begin, begin + n)


def _norm(job: Job, lane: Lane) -> tuple[int, ...]:
    """Return the ranks over which a norm is summed, whose optimizer shares make up the model.

    They are those of one instance if there are several (Megatron-LM's
    ``grad_stats_parallel_group``).
    """
    first = job.ranks[lane.tp, :, :, 0].ravel()
    apart = job.mesh.ep > 1 or (job.mesh.etp != job.mesh.tp and job.model.experts)
    if apart and job.parallelism.optimizer_instances == 1:
        return tuple(sorted(job.ranks.ravel().tolist()))
    replicas = np.argsort(first)
    mine = int(np.searchsorted(first[replicas], job.ranks[*lane, 0]))
    some = replicas[_shards(job, "shard", mine)]
    of_all = job.ranks.reshape(job.mesh.tp, -1, job.mesh.pp)
    return tuple(np.sort(of_all[:, some].ravel()).tolist())


def twin(job: Job, lane: Lane) -> tuple[int, int]:
    """Return the first coordinates along cp and ep that have the same programs as this lane."""
    rank = int(job.ranks[*lane, 0])
    ep = job.mesh.group_of(rank, "ep").index(rank)
    return _first(job, "cp", lane.cp), _first(job, "ep", ep)


def _first(job: Job, axis: str, at: int) -> int:
    """Return the first coordinate along an axis that has the same programs as this one."""
    return max((of(job, axis, at) for of in strategies.hooks("twin")), default=0)


class _Lanes(Sequence[Lane]):
    """Lanes by their coordinates, shape (lanes, 3), each of which is made when it is asked for."""

    def __init__(self, at: NDArray[np.int64]) -> None:
        self._at = at

    def __len__(self) -> int:
        return len(self._at)

    def __iter__(self) -> Iterator[Lane]:
        return itertools.starmap(Lane, self._at.tolist())

    @overload
    def __getitem__(self, k: int) -> Lane: ...
    @overload
    def __getitem__(self, k: slice) -> _Lanes: ...
    def __getitem__(self, k: int | slice) -> Lane | _Lanes:
        return _Lanes(self._at[k]) if isinstance(k, slice) else Lane(*self._at[k].tolist())


def lanes(job: Job) -> Sequence[Lane]:
    """Return all lanes; the last axis counts up first."""
    return _Lanes(np.argwhere(np.ones(job.ranks.shape[:3], np.bool_)))


def atoms(job: Job) -> list[Atom]:
    """Return the atoms, innermost first; none where groups do not cut the lanes into factors."""
    stride, size = _strides(job)
    cuts = sorted({1, size, *stride.values(), *_inside(job, stride)})
    if any(b % a for a, b in pairwise(cuts)):
        return []
    owner = {cut: axis for axis in stride for cut in cuts if cut >= stride[axis]}
    parts = Counter(owner[cut] for cut in cuts[:-1])
    seen, out = Counter[str](), list[Atom]()
    for a, b in pairwise(cuts):
        axis = owner[a]
        name = axis if parts[axis] == 1 else f"{axis}.{seen[axis]}"
        seen[axis] += 1
        out.append(Atom(name, axis, b // a, _able(job, axis, a // stride[axis], a)))
    return out


def folded(over: Sequence[Atom], names: Collection[str]) -> tuple[str, ...]:
    """Return the axes whose atoms are all among ``names``, and other axes' atoms among them."""
    whole = [axis for axis in DENSE if all(a.name in names for a in over if a.axis == axis)]
    there = {atom.axis for atom in over}
    parts = [a.name for a in over if a.name in names and a.axis not in whole]
    return (*(axis for axis in whole if axis in there), *parts)


def alike(job: Job, over: Sequence[Atom], kinds: NDArray[np.int64] | None) -> frozenset[str]:
    """Return the atoms along which all ranks are of one kind.

    ``kinds`` has the kind of each rank, shape (ranks,); None: all ranks are alike.
    """
    if kinds is None:
        return frozenset(atom.name for atom in over)
    grid = kinds[job.grid]
    cells = grid.reshape(*(atom.size for atom in over[::-1]), grid.shape[1])
    axes = {atom.name: len(over) - 1 - k for k, atom in enumerate(over)}
    same = (name for name, at in axes.items() if np.all(cells == cells.take([0], axis=at)))
    return frozenset(same)


def simulated(job: Job, over: Sequence[Atom], names: Collection[str]) -> Sequence[Lane]:
    """Return the lanes that are left when these atoms are folded."""
    if not names:
        return lanes(job)
    sizes = [atom.size for atom in over][::-1]
    at = np.array(np.unravel_index(np.arange(int(np.prod(sizes))), sizes))[::-1]
    zero = [at[k] == 0 for k, atom in enumerate(over) if atom.name in names]
    kept = np.zeros(job.mesh.world, np.bool_)
    kept[job.grid[np.logical_and.reduce(zero), 0]] = True
    return _Lanes(np.argwhere(kept[job.ranks[..., 0]]))


def stand_ins(job: Job, names: Collection[str]) -> NDArray[np.int64]:
    """Return the rank that is simulated for each rank, shape (ranks,), when atoms are folded.

    The result has shape (ranks,).
    """
    over = atoms(job)[::-1]
    sizes = [atom.size for atom in over]
    lane_of, stage_of = job.places
    at = np.array(np.unravel_index(lane_of, sizes)) if over else lane_of[None]
    at[[k for k, atom in enumerate(over) if atom.name in names]] = 0
    lane = np.ravel_multi_index(tuple(at), sizes) if over else lane_of
    return np.asarray(job.grid[lane, stage_of], np.int64)


def _able(job: Job, axis: str, at: int, begin: int) -> bool:
    """Return whether lanes that differ in an atom run the same programs.

    The atom begins at ``at`` within its axis, and at ``begin`` among all lanes.
    """
    ep = begin // job.mesh.etp % job.mesh.ep
    return _first(job, axis, at) == _first(job, "ep", ep) == 0


def _strides(job: Job) -> tuple[dict[str, int], int]:
    """Return how far apart the lanes of each axis are, innermost first, and the number of lanes."""
    stride, size = dict[str, int](), 1
    for axis in job.mesh.order.split("-"):
        if axis in DENSE:
            stride[axis], size = size, size * job.mesh.degree(axis)
    return stride, size


def _inside(job: Job, stride: Mapping[str, int]) -> list[int]:
    """Return where groups end that are smaller or larger than an axis."""
    mesh = job.mesh
    out = [cut for of in strategies.hooks("cuts") for cut in of(job, stride)]
    data = job.data
    if data.optimizer_split > 1:
        out.append(min(stride["cp"], stride["dp"]) * data.optimizer_split)
    if mesh.ep * mesh.etp > 1:
        own = data.of_experts.optimizer_split if data.sharding else 1
        out.append(mesh.etp * mesh.ep * own)
    return out


def shifted(
    job: Job, names: Collection[str], ranks: tuple[int, ...], over: Sequence[Atom]
) -> NDArray[np.int64]:
    """Return the images of a group under all shifts along some atoms, each once, itself first.

    ``names`` are those of atoms or of axes; ``over`` are all atoms of the job. The result has shape
    (images, ranks).
    """
    sizes = [atom.size for atom in over][::-1]
    lane_of, stage_of = job.places
    own = np.array(ranks)
    at, stage = np.array(np.unravel_index(lane_of[own], sizes)), stage_of[own]

    def image(steps: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ranks that are so many steps along each atom away, (steps, ranks)."""
        moved = [(at[k] + steps[:, k, None]) % size for k, size in enumerate(sizes)]
        out: NDArray[np.int64] = job.grid[np.ravel_multi_index(tuple(moved), sizes), stage]
        return out

    moves = [a.size if a.name in names or a.axis in names else 1 for a in over][::-1]
    units = image(np.eye(len(sizes), dtype=np.int64))
    kept = (np.sort(units, axis=1) == np.sort(own)).all(axis=1)
    steps = np.indices([1 if k else n for k, n in zip(kept, moves, strict=True)])
    images = image(steps.reshape(len(sizes), -1).T)
    _, first = np.unique(multisets(images), return_index=True)
    return images[np.sort(first)]
