"""What one stage does for one microbatch: kernels and collectives in issue order, unplaced.

Strategies rewrite programs; :mod:`sim.builder.training_step` turns each into a template of graph
columns and stamps it once per microbatch and rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sim.builder.slots import Needs
from sim.graph import Compute, Copy, Fixed, Host, Memory


class Kernel(NamedTuple):
    """A compute kernel on the compute stream.

    ``needs`` are positions in the program of items on *other* streams that must have ended; what
    comes earlier on the compute stream has ended anyway. A need that is no item of the program is a
    :class:`~sim.builder.slots.Slot`.
    """

    name: str
    work: Compute | Fixed | Copy | Host
    phase: str  # F forward, R recomputed forward, I input gradient, W weight gradient
    layer: int = -1
    needs: Needs = ()
    memory: tuple[Memory, ...] = ()
    stream: str = ""  # "": the compute stream
    ahead: bool = False  # at the start of a step it comes before the step's inputs


class Collective(NamedTuple):
    """A communication over one axis of the mesh, on the stream named after that axis.

    ``bytes`` is the whole buffer, as in :class:`sim.graph.Communication`. ``needs`` are positions
    of the items on other streams (usually the kernel just before it) that must have ended.
    """

    name: str
    axis: str  # axis of the mesh, and the dimension that its seconds count for
    collective: str
    bytes: float
    phase: str
    layer: int = -1
    needs: Needs = ()
    memory: tuple[Memory, ...] = ()
    stream: str = ""  # "": the axis's name
    algorithm: str = "auto"  # see sim.machine.collectives
    ahead: bool = False  # at the start of a step it comes before the step's inputs


Item = Kernel | Collective
Program = Sequence[Item]

WEIGHT_GRADIENT = "weight_gradient"
"""The memory of a weight gradient that is still to be added to the main gradient."""

INPUT_GRADIENTS = "input_gradients"
"""The memory of gradients of activations while a layer's backward runs."""


def computes(item: Item) -> bool:
    """Return whether an item is a kernel on the compute stream, not a copy beside it."""
    return isinstance(item, Kernel) and not item.stream


def without(item: Item, category: str) -> Item:
    """Return the item without what it allocates and frees of a category."""
    memory = tuple(m for m in item.memory if m.category != category)
    return item if len(memory) == len(item.memory) else item._replace(memory=memory)
