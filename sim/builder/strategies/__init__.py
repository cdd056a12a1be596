"""How a model is split over ranks: one file per strategy, each a rewriting of plain data.

A strategy changes the share that a rank computes, says which collectives are at the edges of what
it splits, or rewrites a finished program. A degree of 1 changes nothing. A new strategy is a file
here and its line where it applies (:func:`share`, :func:`edges`, :mod:`sim.builder.stage`).
"""

from __future__ import annotations

from collections.abc import Mapping

from sim.builder.strategies import context, expert, fp8, sequence, tensor
from sim.builder.strategies.tensor import Edge
from sim.model.operators import Share, whole
from sim.model.sizes import Model, Setting


def share(model: Model, setting: Setting, *, cp_rank: int = 0, ep_rank: int = 0) -> Share:
    """Return what one rank computes of a layer, the embedding and the head.

    ``cp_rank`` is the rank's coordinate in the context-parallel group, which matters to attention
    only. ``ep_rank`` is that along ep: with an uneven load each rank has other numbers of tokens.
    Raises InputError where a size cannot be divided evenly.
    """
    part = tensor.split(whole(model, setting), setting.tp)
    part = context.split(part, setting, cp_rank)
    part = sequence.split(part, setting.tp) if setting.sp else part
    return expert.split(part, model, setting, ep_rank) if model.experts else part


def edges(setting: Setting) -> Mapping[str, Edge]:
    """Return the collectives by kind of edge; a degree of 1 has none."""
    split = sequence.EDGES if setting.sp else tensor.EDGES
    around = {**context.edges(setting), **expert.edges(setting), **fp8.edges(setting)}
    return {**(split if setting.tp > 1 else {}), **around}
