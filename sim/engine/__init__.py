"""The engine: the times at which the ops of a graph run on a given machine.

:mod:`~sim.engine.loop` is the event loop on SimPy. Before it runs, :mod:`~sim.engine.uses` and
:mod:`~sim.engine.between` find what can meet what, and :mod:`~sim.engine.segments` cuts streams
into runs without a decision inside. :mod:`~sim.engine.sharing` is what happens where kernels and
communication meet, on GPUs (:mod:`~sim.engine.gpu`) and links (:mod:`~sim.engine.flows`).
"""

from sim.engine.deadlock import DeadlockError
from sim.engine.loop import Progress, simulate
from sim.engine.sharing import Stats

__all__ = ["DeadlockError", "Progress", "Stats", "simulate"]
