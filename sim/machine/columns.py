"""The links of a network in columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.graph import Bools, Floats, Longs
from sim.machine.hashes import mixed
from sim.machine.wires import Node, Wires

Integers = Longs
Flags = Bools


class Columns(NamedTuple):
    """Links by index, and nodes by the order in which they were laid."""

    start: Integers  # per link: the node that it leads from
    end: Integers  # and the one that it leads to
    bandwidth: Floats  # B/s
    latency: Floats  # seconds
    efficiency: Floats
    up: Flags  # whether it leads away from the GPUs
    kind: NDArray[np.object_]  # its kind, or None
    gpu: Flags  # per node: whether it is a GPU
    nic: Flags  # per node: whether it is a NIC


def columns(network: Wires) -> Columns:
    """Return the links of a network in columns."""
    number = {node: k for k, node in enumerate(network)}
    links = list(network.edges(data=True))
    facts = [of for _, _, of in links]

    def column(key: str, default: float) -> Floats:
        return np.array([of.get(key, default) for of in facts], np.float64)

    def ends(which: int) -> Integers:
        return np.array([number[link[which]] for link in links], np.int64)

    return Columns(
        ends(0),
        ends(1),
        column("bandwidth", 0.0),
        column("latency", 0.0),
        column("efficiency", 1.0),
        np.array([bool(of.get("up")) for of in facts], np.bool_),
        np.array([of.get("kind") for of in facts], object),
        np.array([isinstance(node, int) for node in number], np.bool_),
        np.array([_is_nic(network, node) for node in number], np.bool_),
    )


def _is_nic(network: Wires, node: Node) -> bool:
    return bool(network.nodes[node].get("tier") == "nic")


def sorts(of: Columns) -> Integers:
    """Return a number for each link, shape (links,): the same for those that are equally fast."""
    facts = np.stack([of.bandwidth, of.efficiency, of.latency], axis=1)
    return np.unique(mixed(facts.view(np.int64)), return_inverse=True)[1]


def back(of: Columns) -> Integers:
    """Return the link the other way for each link, shape (links,); -1 where there is none."""
    many = len(of.gpu)
    key, other = of.start * many + of.end, of.end * many + of.start
    order, others = np.argsort(key), np.argsort(other)
    if np.array_equal(key[order], other[others]):  # all lead both ways
        out = np.empty_like(order)
        out[others] = order
        return out
    at = np.searchsorted(key[order], other).clip(max=max(len(key) - 1, 0))
    found = order[at] if len(order) else order
    return np.where(key[found] == other, found, -1)


def heights(of: Columns) -> Integers:
    """Return how many links each node is away from the nearest GPU, shape (nodes,)."""
    far = np.iinfo(np.int64).max // 4
    out = np.where(of.gpu, 0, far)
    while True:
        before = out.copy()
        np.minimum.at(out, of.end, before[of.start] + 1)
        if np.array_equal(out, before):
            return out
