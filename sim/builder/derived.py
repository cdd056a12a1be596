"""What follows from the sections of a recipe: axes, data parallelism, messages.

Each is derived here and nowhere else; :class:`sim.builder.job.Job` has the results.
"""

from __future__ import annotations

from sim import strategies
from sim.builder.mesh import Mesh
from sim.builder.strategies.data import DataParallel
from sim.builder.strategies.exchange import Policy
from sim.recipe import messages
from sim.recipe.recipe import ParallelismSection, ScheduleSection, TrainingSection


def mesh(p: ParallelismSection) -> Mesh:
    """Return the axes over the ranks."""
    return Mesh(p.tp, p.cp, p.ep, p.dp or 1, p.pp, p.etp, p.order)


def policy(p: ParallelismSection, schedule: ScheduleSection) -> Policy:
    """Return how ranks exchange messages."""
    p2p = messages.p2p(p, schedule)
    overlaps = p2p != "batched" if p.overlap_p2p is None else p.overlap_p2p
    return Policy(p2p, schedule.name == "interleaved_1f1b", 1 if overlaps else 0)


def data_parallel(
    p: ParallelismSection, training: TrainingSection, *, experts: bool
) -> DataParallel:
    """Return how replicas agree; ``experts`` says whether the model has any."""
    degree = (p.dp or 1) * p.cp
    own = mesh(p).edp if experts and p.tp * p.ep * p.etp > 1 else None
    data = DataParallel(p, training, degree, p.bucket_mb * 1e6, own)
    for change in strategies.hooks("data"):
        data = change(data)
    return data
