"""The routes between many pairs of GPUs at once, where all ways up lead through the same tiers."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Node = Hashable
Way = tuple[Node, ...]
Integers = NDArray[np.int64]
Links = NDArray[np.int32]


class Paths:
    """The ways up of all GPUs in columns: per way the switches, and the links up and down.

    ``nodes`` has for each way a number per GPU and tier, shape (gpus, tiers); ``up`` and ``down``
    have the links between those, shape (gpus, tiers - 1).
    """

    def __init__(
        self, nodes: Sequence[Integers], up: Sequence[Links], down: Sequence[Links]
    ) -> None:
        self.nodes, self.up, self.down = nodes, up, down

    @cached_property
    def slots(self) -> Links:
        """The links on each GPU's ways, shape (gpus, slots); a slot is a tier and a direction."""
        return np.concatenate([*self.up, *self.down], axis=1)

    def blocks(self, pairs: Integers) -> list[Links] | None:
        """Return the routes of these pairs, shape (pairs, 2), in blocks of equally long ones.

        A block has shape (routes, links); their order is not that of the pairs. None where some
        ways do not meet.
        """
        out: list[Links] = []
        for nodes, up, down in zip(self.nodes, self.up, self.down, strict=True):
            for tier, node in enumerate(nodes.T):
                same = node[pairs[:, 0]] == node[pairs[:, 1]]
                if not same.any():
                    continue
                a, b = pairs[same].T
                out.append(np.concatenate([up[a, :tier], down[b, :tier][:, ::-1]], axis=1))
                pairs = pairs[~same]
                if not len(pairs):
                    return out
        return None


def of_ways(
    ways: Mapping[int, Sequence[Way]], index: Mapping[tuple[Node, Node], int]
) -> Paths | None:
    """Return the ways of GPUs in columns, or None where they do not lead through the same tiers."""
    every = [ways[gpu] for gpu in range(len(ways))]
    lengths = {tuple(map(len, some)) for some in every}
    if len(lengths) != 1:
        return None
    nodes, up, down = [], [], []
    for way in zip(*every, strict=True):
        nodes.append(np.stack([_numbers(tier) for tier in zip(*way, strict=True)], axis=1))
        steps = [[*pairwise(one)] for one in way]
        up.append(_links([[index[a, b] for a, b in row] for row in steps]))
        down.append(_links([[index[b, a] for a, b in row] for row in steps]))
    return Paths(nodes, up, down)


def _numbers(tier: Sequence[Node]) -> Integers:
    """Return a number for each node, in the order in which they first appear."""
    number: dict[Node, int] = {}
    return np.array([number.setdefault(node, len(number)) for node in tier], np.int64)


def _links(rows: list[list[int]]) -> Links:
    return np.array(rows, np.int32).reshape(len(rows), -1)
