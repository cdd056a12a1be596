"""The engine: the times at which the ops of a graph run on a given machine.

:mod:`~sim.engine.loop` is the event loop on SimPy; :mod:`~sim.engine.completion` is what happens
when a segment ends. Before the loop runs, :mod:`~sim.engine.uses` and :mod:`~sim.engine.between`
find which ops can slow each other, and :mod:`~sim.engine.segments` cuts streams into segments, each
of which runs as one. Ops that share a GPU are in :mod:`~sim.engine.kernels` (the state of a GPU in
:mod:`~sim.engine.gpu`), and those that share links in :mod:`~sim.engine.communication` (what moves
on the links in :mod:`~sim.engine.flows`). :mod:`~sim.engine.compiled` does the same in compiled
functions, for graphs for which :mod:`~sim.engine.choice` takes it.
"""

from sim.engine.deadlock import DeadlockError
from sim.engine.loop import simulate
from sim.engine.run import Progress, Stats

__all__ = ["DeadlockError", "Progress", "Stats", "simulate"]
