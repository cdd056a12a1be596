"""Which numbers matrix products take in fp8, and how they are scaled: facts of a recipe's fp8; and
in which Adam keeps what it has of a parameter.

Recipes are Transformer Engine's (github.com/NVIDIA/TransformerEngine, user guide, "Low precision
training"): ``delayed`` scales a tensor by what its maximum was before, so it is read once;
``tensorwise`` (current scaling) reads it for the maximum, then casts it; ``blockwise``
(DeepSeek-V3, arXiv:2412.19437, section 3.3) has an fp32 scale for each 1 x 128 of activations and
gradients and each 128 x 128 of weights; ``mxfp8`` one byte for each 32. ``rowwise`` is torchao's: a
scale per row.
"""

from __future__ import annotations

from typing import NamedTuple

from sim.units import BYTES

_SCALES = {"blockwise": 4 / 128, "mxfp8": 1 / 32}
_WEIGHT_SCALES = {"blockwise": 4 / 128**2, "mxfp8": 1 / 32}


class Fp8(NamedTuple):
    """How the linears of a model's layers run in fp8."""

    recipe: str = "delayed"
    params: bool = False  # weights are kept in fp8, and gathered so
    gather: bool = True  # sequence-parallel all-gathers carry fp8
    transpose: bool = True  # a product needs the reduced index to be the inner one of both: Hopper
    amax: str = "all"  # delayed: over whom maxima are reduced: all, tp, none

    @property
    def both_ways(self) -> bool:
        """Whether scales along rows and along columns differ, so that two copies are cast."""
        return self.recipe in ("rowwise", "blockwise", "mxfp8")

    @property
    def copies(self) -> int:
        """Copies of a tensor that products in both directions need."""
        return 2 if self.both_ways or self.transpose else 1

    @property
    def element(self) -> float:
        """Bytes of an element of an activation or gradient, its share of a scale included."""
        return 1.0 + _SCALES.get(self.recipe, 0.0)

    @property
    def weight(self) -> float:
        """Bytes of an element of a weight likewise."""
        return 1.0 + _WEIGHT_SCALES.get(self.recipe, 0.0)

    @property
    def fuses(self) -> bool:
        """Whether a norm's kernel casts its output (Transformer Engine's LayerNormLinear): where
        the scale is known before, or belongs to what one block of threads has."""
        return self.recipe in ("delayed", "mxfp8")

    @property
    def gathers_params(self) -> bool:
        """Whether weights travel in fp8; of mxfp8 16 bits do, and are cast where they arrive
        (Megatron-LM, ``reuse_grad_buf_for_mxfp8_param_ag``)."""
        return self.params and self.recipe != "mxfp8"


class AdamState(NamedTuple):
    """The numbers of a parameter's master copy and of its two moments.

    ``master`` is "none" where the weights are the only copy, and "remainder" where the 16 bits are
    kept that a weight of bf16 lacks of fp32 (Transformer Engine's ``store_param_remainders``).
    Scales of fp8 and fp16, one for each tensor, are left out.
    """

    master: str = "fp32"
    first: str = "fp32"
    second: str = "fp32"

    @property
    def moments(self) -> int:
        """Bytes of both moments."""
        return BYTES[self.first] + BYTES[self.second]

    def copy(self, weights: str) -> int:
        """Bytes of the master copy of weights of that dtype: none where it would be the same."""
        if self.master in ("none", weights):
            return 0
        return 2 if self.master == "remainder" else BYTES[self.master]

    def widened(self, weights: str) -> tuple[str, ...]:
        """The dtypes of what is copied to fp32 before an update, and back behind it.

        Kernels take fp32 and bf16 as they lie in memory; fp16 and fp8 have a scale that follows
        from what comes out.
        """
        own = (self.master,) if self.copy(weights) else ()
        return tuple(dtype for dtype in (*own, self.first, self.second) if dtype in SCALED)


SCALED = ("fp8", "fp16")
