"""What goes wrong in a job, how often, and what it takes to go on."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

SPARED = ("gpu", "nic", "node", "job")
"""Kinds of failures after which a node is replaced; software only starts again."""


class Slow(NamedTuple):
    """Spells in which one node makes every step longer."""

    between: float
    """mean seconds between two spells of the job"""
    lasts: float
    """mean seconds of a spell"""
    factors: tuple[float, ...]
    """what steps take, over what they take without; one is drawn for each spell"""


class Faults(NamedTuple):
    """The failures of a job; times are seconds."""

    rates: Mapping[str, float]
    """failures per second of the whole job, by kind"""
    detection: float
    restart: float
    """time from a new node, or none, to the first step, but for reading the checkpoint"""
    spares: int | None = None
    """nodes that wait to replace others; None: there is always one"""
    repair: float = 0.0
    """mean time until a failed node is a spare"""
    slow: Slow | None = None

    @property
    def mtbf(self) -> float:
        """Mean seconds between failures of the job."""
        rate = 0.0
        for one in self.rates.values():
            rate += one
        return 1.0 / rate if rate else inf
