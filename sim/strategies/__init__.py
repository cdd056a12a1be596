"""How a model is split over ranks: one file per strategy, each a rewriting of plain data.

A strategy changes the share that a rank computes, says which collectives stand at the edges of
what it splits, or rewrites a finished program. A degree of 1 changes nothing. Adding a strategy is
adding a file here and its line where it applies (:func:`share`, :func:`edges`, :mod:`sim.stage`).
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.model import Model, Setting
from sim.operators import Share, whole
from sim.strategies import context, sequence, tensor
from sim.strategies.tensor import Edge


def share(model: Model, setting: Setting, *, cp_rank: int = 0) -> Share:
    """What one rank computes of a layer, the embedding and the head.

    ``cp_rank`` is its coordinate in the context-parallel group; all but attention is alike there.

    Raises ValueError where a size cannot be divided evenly.
    """
    part = tensor.split(whole(model, setting), setting.tp)
    part = context.split(part, setting, cp_rank)
    return sequence.split(part, setting.tp) if setting.sp else part


def edges(setting: Setting) -> Mapping[str, Edge]:
    """Collectives by kind of edge; none for a degree of 1."""
    around = context.edges(setting)
    if setting.tp == 1:
        return around
    return {**(sequence.EDGES if setting.sp else tensor.EDGES), **around}
