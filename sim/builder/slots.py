"""Slots: the named ops that a program needs and that are not among its own items.

A stamp of the program's template (:mod:`sim.builder.template`) says for each of its copies which op
of the rank fills a slot; :mod:`sim.builder.strategies.pipeline` finds these ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """One op that a program is given; ``number`` tells slots of one name apart."""

    name: str
    number: int = 0

    @classmethod
    def input(cls, number: int = 0) -> Slot:
        """Return the op that brings an input from another stage.

        For a head, a tail or an exchange it is one of the ops that it comes after.
        """
        return cls("input", number)

    @classmethod
    def before(cls, member: int = 0) -> Slot:
        """Return the last kernel before the step on its rank, of that member of a shared pair."""
        return cls("before", member)

    @classmethod
    def head(cls, number: int) -> Slot:
        """Return an op of the head of the training step, counted over the whole rank."""
        return cls("head", number)


SENT = Slot("sent")
"""The last copy to the host in the forward of the same stage and microbatch."""
AHEAD = Slot("ahead")
"""For a backward: what ran on the rank before its last backward."""
GONE = Slot("gone")
"""The last copy to the host in the rank's last forward but one."""

Need = int | Slot
"""What an item waits for: the item at that position of its program, or the op in a slot."""
Needs = tuple[Need, ...]


def inputs(count: int) -> tuple[Slot, ...]:
    """Return the first ``count`` inputs."""
    return tuple(Slot.input(number) for number in range(count))


def moved(needs: Needs, place: Sequence[int]) -> Needs:
    """Return needs of items after item i of their program has moved to position ``place[i]``.

    >>> moved((0, SENT, 1), [0, 5])
    (0, Slot(name='sent', number=0), 5)
    """
    return tuple(place[need] if isinstance(need, int) else need for need in needs)
