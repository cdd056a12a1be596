"""Which numbers matrix products take in fp8 and how they are scaled.

The fp8 recipes are Transformer Engine's (github.com/NVIDIA/TransformerEngine, user guide, "Low
precision training"). ``delayed`` scales a tensor by its earlier maximum, so it is read once;
``tensorwise`` (current scaling) reads it for the maximum, then casts it; ``blockwise``
(DeepSeek-V3, arXiv:2412.19437, section 3.3) has an fp32 scale for each 1 x 128 of activations and
gradients and each 128 x 128 of weights; ``mxfp8`` has a scale of one byte for each 32 elements.
``rowwise`` is torchao's: a scale per row.
"""

from __future__ import annotations

from typing import NamedTuple

_SCALES = {"blockwise": 4 / 128, "mxfp8": 1 / 32}
_WEIGHT_SCALES = {"blockwise": 4 / 128**2, "mxfp8": 1 / 32}


class Fp8(NamedTuple):
    """How the linears of a model's layers run in fp8."""

    recipe: str = "delayed"
    params: bool = False  # weights are kept and gathered in fp8
    gather: bool = True  # sequence-parallel all-gathers carry fp8
    transpose: bool = True  # products need the reduced index as the inner one of both (Hopper)
    amax: str = "all"  # delayed: the ranks over which maxima are reduced: all, tp, none

    @property
    def both_ways(self) -> bool:
        """Whether scales along rows and along columns differ, so that two copies are cast."""
        return self.recipe in ("rowwise", "blockwise", "mxfp8")

    @property
    def copies(self) -> int:
        """Number of copies of a tensor that products in both directions need."""
        return 2 if self.both_ways or self.transpose else 1

    @property
    def element(self) -> float:
        """Bytes of an element of an activation or gradient, its share of a scale included."""
        return 1.0 + _SCALES.get(self.recipe, 0.0)

    @property
    def weight(self) -> float:
        """Bytes of an element of a weight, its share of a scale included."""
        return 1.0 + _WEIGHT_SCALES.get(self.recipe, 0.0)

    @property
    def fuses(self) -> bool:
        """Whether a norm's kernel casts its output (Transformer Engine's LayerNormLinear).

        It can where the scale is known before, or depends only on what one block of threads has.
        """
        return self.recipe in ("delayed", "mxfp8")

    @property
    def kernel(self) -> str:
        """Which share of the bandwidth a cast reaches, if not that of elementwise kernels."""
        return self.recipe if self.recipe == "mxfp8" else ""

    @property
    def gathers_params(self) -> bool:
        """Whether weights travel in fp8.

        Weights of mxfp8 travel in 16 bits and are cast where they arrive (Megatron-LM,
        ``reuse_grad_buf_for_mxfp8_param_ag``).
        """
        return self.params and self.recipe != "mxfp8"
