"""Which ranks of a job form the group of an axis, and which lanes of ranks repeat each other.

A *lane* is one rank of every pipeline stage: a coordinate on each of the axes tp, cp and dp. Groups
are products of *atoms*, the factors into which all groups cut the lanes: with tp = 4, 2 KV heads
and dp = 6 the lanes are 2 x 2 x 6, since ranks with the same KV heads are a group of 2 inside tp.
Shifting all lanes along an atom maps every group onto a group.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sim.job import Job

DENSE = ("tp", "cp", "dp")


class Lane(NamedTuple):
    """Coordinates of a lane."""

    tp: int
    cp: int
    dp: int


class Atom(NamedTuple):
    """A factor of the lanes: which axis it is part of, and how many shifts it has."""

    axis: str
    size: int


def group(job: Job, axis: str, lane: Lane, q: int) -> tuple[int, ...]:
    """The ranks that the rank of that lane and pipeline rank ``q`` meets on an axis."""
    ranks = job.ranks
    match axis:
        case "tp":
            return tuple(ranks[:, lane.cp, lane.dp, q].tolist())
        case "cp":
            return tuple(ranks[lane.tp, :, lane.dp, q].tolist())
        case "dp":  # of dense gradients: ranks of one sequence have the same weights
            return tuple(sorted(ranks[lane.tp, :, :, q].ravel().tolist()))
        case "kv":  # ranks that hold the same heads
            same = kv_copies(job)
            begin = lane.tp - lane.tp % same
            return tuple(ranks[begin : begin + same, lane.cp, lane.dp, q].tolist())
        case "model":
            whole = ranks if job.data.zero else ranks[:, lane.cp, lane.dp]
            return tuple(sorted(whole.ravel().tolist()))
    return job.mesh.group_of(int(ranks[*lane, q]), axis)


def kv_copies(job: Job) -> int:
    """How many tensor-parallel ranks hold the same KV heads."""
    return max(1, job.mesh.tp // job.model.kv_heads)


def lanes(job: Job) -> list[Lane]:
    """All lanes; the last axis counts up first."""
    return [Lane(*index) for index in np.ndindex(*job.ranks.shape[:3])]


def atoms(job: Job) -> list[Atom]:
    """Innermost first; without any where groups do not cut the lanes into factors."""
    inner_first = [axis for axis in job.mesh.order.split("-") if axis in DENSE]
    stride, size = dict[str, int](), 1
    for axis in inner_first:
        stride[axis], size = size, size * job.mesh.degree(axis)
    cuts = sorted({1, size, *stride.values(), *_inside(job, stride)})
    if any(b % a for a, b in pairwise(cuts)):
        return []
    owner = {cut: axis for axis in inner_first for cut in cuts if cut >= stride[axis]}
    return [Atom(owner[a], b // a) for a, b in pairwise(cuts)]


def _inside(job: Job, stride: dict[str, int]) -> list[int]:
    """Where groups end that are less than an axis, or more."""
    out, mesh = [stride["tp"] * kv_copies(job)], job.mesh
    if mesh.ep * mesh.etp > 1:
        out += [mesh.etp, mesh.etp * mesh.ep]
    return out


def shifted(
    job: Job, axes: Sequence[str], ranks: tuple[int, ...], over: Sequence[Atom]
) -> list[tuple[int, ...]]:
    """The images of a group under all shifts along the atoms of ``axes``, each once, itself first.

    ``over`` are all atoms of the job, innermost first.
    """
    sizes = [atom.size for atom in over][::-1]
    moves = [atom.size if atom.axis in axes else 1 for atom in over][::-1]
    lane_of, stage_of = _places(job)
    at = np.array(np.unravel_index(lane_of[list(ranks)], sizes))
    steps = np.array(list(np.ndindex(*moves)))
    moved = (at[None] + steps[:, :, None]) % np.array(sizes)[None, :, None]
    lane = np.ravel_multi_index(tuple(np.moveaxis(moved, 1, 0)), sizes)
    images = _rank_at(job)[lane, stage_of[list(ranks)]]
    unique: dict[tuple[int, ...], tuple[int, ...]] = {}
    for image in images.tolist():
        unique.setdefault(tuple(sorted(image)), tuple(image))
    return list(unique.values())


def _rank_at(job: Job) -> np.ndarray:
    """The rank of each lane, numbered innermost axis first, and pipeline rank."""
    inner_first = [axis for axis in job.mesh.order.split("-") if axis in DENSE]
    by_order = np.transpose(job.ranks, [*(DENSE.index(a) for a in inner_first[::-1]), 3])
    return by_order.reshape(-1, job.ranks.shape[3])


def _places(job: Job) -> tuple[np.ndarray, np.ndarray]:
    """Of each rank its lane, numbered so, and its pipeline rank."""
    grid = _rank_at(job)
    lane, stage = np.empty(grid.size, np.int64), np.empty(grid.size, np.int64)
    lane[grid], stage[grid] = np.indices(grid.shape)
    return lane, stage
