"""Which kernels a depth of multi-token prediction runs before its layer.

Source: DeepSeek-V3 (arXiv:2412.19437, section 2.2) and Megatron-Core,
transformer/multi_token_prediction.py.

The hidden states and the embedding of the token one further on are normalised, put side by side and
projected from twice the width. A layer like the last one follows, then the model's own head with a
norm before it, and a loss. All of it runs on the last stage, after the layers: depth d is layer
``layers + d``. The projection is column-parallel and its output gathered, as in Megatron-Core.
"""

from __future__ import annotations

from functools import cache

from sim.model.operators import (
    Launch,
    Operator,
    Share,
    finished,
    grad_add,
    linear,
    memory,
    norm,
)
from sim.model.sizes import Model


@cache
def joined(model: Model, share: Share, embedded: Operator) -> tuple[Operator, ...]:
    """Return the operators from the last depth's output to the input of this depth's layer.

    ``embedded`` is the operator that looks up the embedding.
    """
    x, degree = share.residual, model.heads // share.heads
    both = memory(share, "elementwise", 4 * x)
    inward = linear(share, "mtp_projection", 2 * share.hidden, share.hidden // degree, "column")
    operators = (
        grad_add(share, "mtp_hidden"),
        embedded,
        norm(share, "mtp_hidden_norm", branch=False),
        norm(share, "mtp_embedding_norm", branch=False),
        Operator("mtp_concat", (Launch("mtp_concat", both),), (Launch("mtp_split", both),)),
        inward,
        Operator("mtp_output", edge="projected", buffer=share.whole_residual),
    )
    return finished(operators, share)
