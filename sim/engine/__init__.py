"""The engine: the times at which the ops of a graph run on a given machine.

:mod:`~sim.engine.loop` is the event loop on SimPy, :mod:`~sim.engine.completion` what the end of a
segment sets off. Before it runs, :mod:`~sim.engine.uses` and
:mod:`~sim.engine.between` find what can meet what, and :mod:`~sim.engine.segments` cuts streams
into runs without a decision inside. What shares is in :mod:`~sim.engine.kernels` (on a GPU, whose
state is in :mod:`~sim.engine.gpu`) and :mod:`~sim.engine.communication` (on links, whose flows are
in :mod:`~sim.engine.flows`).
"""

from sim.engine.deadlock import DeadlockError
from sim.engine.loop import simulate
from sim.engine.run import Progress, Stats

__all__ = ["DeadlockError", "Progress", "Stats", "simulate"]
