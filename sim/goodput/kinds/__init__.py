"""Kinds of checkpoints: a module each with ``costs``, which a recipe names in checkpoint.kind."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple

from sim.goodput.pace import Costs

NAMES = ("blocking", "asynchronous", "memory")
"""The kinds, from the plainest on."""


class State(NamedTuple):
    """Bytes of the state of a job: weights, and what the optimizer keeps of them."""

    total: float
    """all of it, once"""
    node: float
    """the most that one node writes, where copies of a state are written by parts"""
    gpu: float
    """the most that one GPU writes"""
    all_read: float
    """what all GPUs read"""
    node_reads: float
    """the most that one node reads"""
    gpu_reads: float
    """the most that one GPU reads"""


class Paths(NamedTuple):
    """Bytes per second that the ways of a checkpoint carry."""

    write: float
    """what storage takes from all nodes"""
    read: float
    """what storage gives to all nodes"""
    node: float
    """what one node reaches of storage, each way"""
    nics: float
    """what one node reaches of other nodes, each way"""
    host: float
    """what a GPU reaches of its host's memory, each way"""

    def stored(self, of: State) -> float:
        """Return the seconds that writing to storage takes."""
        return max(of.total / self.write, of.node / self.node)

    def loaded(self, of: State) -> float:
        """Return the seconds that reading from storage takes."""
        return max(of.all_read / self.read, of.node_reads / self.node)


def costs(kind: str, of: State, ways: Paths) -> Costs:
    """Return what a checkpoint of this kind costs."""
    found: Costs = import_module(f"sim.goodput.kinds.{kind}").costs(of, ways)
    return found
