"""Edits of links: more or less bandwidth for those of a name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from schedules.input_error import InputError
from sim.graph import owners
from sim.machine.cluster import Cluster
from sim.machine.hardware import Machine
from sim.machine.links import kind as link_kind

Names = tuple[str, ...]


def link_names(cluster: Cluster) -> list[Names]:
    """Return the names by which an edit may call each link, one tuple per link of the cluster.

    A link inside a node has the name of its kind, such as "nvlink". All others are called "ib".
    Those on either side of a NIC are also called "nic" (and "pcie" on the side of its GPU), and
    those beyond it "fabric".
    """
    return [link_kind(cluster.network, link).names for link in cluster.links]


def faster(machine: Machine, name: str, factor: float, links: Sequence[Names]) -> Machine:
    """Give the links of a name ``factor`` times their bandwidth and return the machine.

    Latencies (which include what protocols waste) and the choice of algorithms stay as they are.
    """
    known = sorted({"all"}.union(*links))
    if not links:
        raise InputError(f"no link {name!r}: the links of this run have no names")
    if name not in known:
        near = get_close_matches(name.lower(), known, 1)
        hint = f"did you mean {near[0]}? There" if near else "there"
        raise InputError(f"no link {name!r}; {hint} are {', '.join(known)}")
    chosen = np.array([name == "all" or name in of for of in links], bool)
    return with_capacity(machine, np.where(chosen, machine.capacity * factor, machine.capacity))


def with_capacity(machine: Machine, capacity: NDArray[np.float64]) -> Machine:
    """Return the machine with these capacities of links, and with speeds that follow from them.

    ``capacity`` has the B/s of each link, one per row of ``machine.capacity``.
    """
    speed = _speeds(machine, capacity)
    ratio = np.divide(speed, machine.speed, out=np.ones_like(speed), where=np.isfinite(speed))
    return replace(
        machine, capacity=capacity, speed=speed, hbm=np.minimum(machine.hbm * ratio, 1.0)
    )


def _speeds(machine: Machine, capacity: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the B/s of each work when it is alone: what the slowest of its links allows."""
    speed = np.full(len(machine.speed), np.inf)
    work = owners(machine.link_start)
    loads = machine.coefficient > 0
    np.minimum.at(speed, work[loads], capacity[machine.link[loads]] / machine.coefficient[loads])
    return speed
