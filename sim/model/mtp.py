"""Which kernels a depth of multi-token prediction runs before its layer (DeepSeek-V3, arXiv:
2412.19437, section 2.2; Megatron-Core, transformer/multi_token_prediction.py).

The hidden states and the embedding of the token one further on are normalised, put side by side and
projected from twice the width; a layer like the last ones follows, then the model's own head with a
norm before it, and a loss. All of it stands on the last stage, behind the layers: depth d is layer
``layers + d``. The projection is column-parallel and its output gathered, as Megatron-Core's is.
"""

from __future__ import annotations

from functools import cache

from sim.model.operators import Launch, Operator, Share, grad_add, linear, memory, norm
from sim.model.quantise import quantised
from sim.model.sizes import Model


@cache
def joined(model: Model, share: Share, embedded: Operator) -> tuple[Operator, ...]:
    """From the last depth's output to the input of this depth's layer; ``embedded`` looks up."""
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
    return quantised(operators, share)
