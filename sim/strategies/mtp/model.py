"""What multi-token prediction adds to a model: parameters and FLOPs of its depths."""

from __future__ import annotations

from collections.abc import Sequence

from sim.model.part import Part
from sim.model.sizes import Model, Parameters, layer_flops, norm_parameters, padded_vocab
from sim.strategies.mtp.declare import depths


class Joined(Part):
    """What joins a depth's inputs: three norms, a projection, and an embedding if not tied."""

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank; the third norm is that before the depth's head."""
        model = self.model
        return Parameters(
            linear=self.matrices(tp, ep, etp),
            norm=3 * norm_parameters(model),
            embedding=0 if model.tied else padded_vocab(model, tp) // tp * model.hidden,
        )

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of the matrix from hidden state and embedding."""
        return 2 * self.model.hidden * self.model.hidden // tp


def further(model: Model) -> Sequence[tuple[Part, ...]]:
    """Return for each depth what comes before its layer."""
    return [(Joined(model, model.layers + d),) for d in range(depths(model))]


def flops(model: Model, batch: int, sequence: int, head: float) -> float:
    """Return the forward FLOPs of all depths: each a layer, a head and a projection."""
    if not depths(model):
        return 0.0
    depth = layer_flops(model, batch, sequence, model.layers) + head
    depth += 2.0 * batch * sequence * Joined(model).used()
    return depths(model) * depth
