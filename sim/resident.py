"""What a rank holds during the whole step: weights, gradients and the optimizer's state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sim.job import Job
from sim.model import BYTES

ADAM, MASTER = 8, 4
"""Bytes per parameter of Adam's two moments, and of the fp32 copy where weights are 16 bits."""


def resident(job: Job, stages: Sequence[int], q: int = 0) -> Mapping[str, float]:
    """Bytes by category on pipeline rank ``q``, which holds these stages.

    In mixed precision 2 + 2 + 12 per parameter (Rajbhandari et al. 2019, section 3.1), 2 + 4 + 12
    with fp32 gradients; ZeRO-1 splits the 12 over the replicas. A pipeline that is not flushed
    keeps the weights of as many updates before (PipeDream's stash, 2BW's second buffer).
    """
    held = sum(job.held(s).total for s in stages)
    weight = BYTES[job.data.dtype]
    state = ADAM + (MASTER if weight < 4 else 0)
    stale = job.stale[q] if job.stale else 0
    return {
        "weights": float(held * weight),
        **({"stashed_weights": float(stale * held * weight)} if stale else {}),
        "gradients": float(held * BYTES[job.data.grad_dtype]),
        "optimizer": held * state / (job.data.degree if job.data.zero else 1),
    }
