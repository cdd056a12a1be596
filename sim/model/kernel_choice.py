"""Which kernels a framework runs where others run one fused kernel, and the bytes that these move.

Sequences of PyTorch's operators are bytes per element of each operator that moves whole tensors, in
the order in which they run; ``e`` stands for the bytes of an activation. They are what torch's
dispatcher counts for the code named beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WIDE = 4  # bytes of an fp32 element
Passes = Sequence[tuple[str, int, int]]  # name, bytes in fp32, bytes in units of e


class Kernels(NamedTuple):
    """A choice for each place; the defaults are one fused kernel each way, or Megatron-LM's."""

    norm: str = "fused"  # or eager: an RMS norm as PyTorch operators, in fp32
    rope: str = "fused"  # or complex: queries and keys as complex numbers, in fp32
    loss: str = "megatron"  # or torch (F.cross_entropy of fp32 logits), fused (one kernel)
    experts: str = "grouped"  # or sequential: one product for each expert
    permute: str = "fused"  # or eager: index_select and scatter_add


USUAL = Kernels()

# x.float(), pow, mean, times rsqrt, type_as, times weight: torchtitan and Hugging Face's Llama
NORM: Passes = (
    ("to_wide", WIDE, 1),
    ("square", 2 * WIDE, 0),
    ("mean", WIDE, 0),
    ("scale", 2 * WIDE, 0),
    ("from_wide", WIDE, 1),
    ("weight", 0, 2),
)
NORM_BACKWARD: Passes = (
    ("weight_grad_product", 0, 3),
    ("weight_backward", 0, 2),
    ("weight_grad", 0, 1),
    ("to_wide", WIDE, 1),
    ("scale_grad_product", 3 * WIDE, 0),
    ("scale_backward", 2 * WIDE, 0),
    ("scale_grad", WIDE, 0),
    ("mean_backward", WIDE, 0),
    ("power", 2 * WIDE, 0),
    ("twice", 2 * WIDE, 0),
    ("square_backward", 3 * WIDE, 0),
    ("sum", 3 * WIDE, 0),
    ("from_wide", WIDE, 1),
)
# float, view_as_complex, times freqs_cis, type_as: apply_rotary_emb of Llama and torchtitan
ROPE: Passes = (("to_wide", WIDE, 1), ("rotate", 2 * WIDE, 0), ("from_wide", WIDE, 1))
# logits.float(), log_softmax, nll_loss: F.cross_entropy
LOSS: Passes = (("to_fp32", WIDE, 1), ("log_softmax", 2 * WIDE, 0))
LOSS_BACKWARD: Passes = (
    ("nll_backward", WIDE, 0),
    ("log_softmax_backward", 3 * WIDE, 0),
    ("from_fp32", WIDE, 1),
)
# a row read for its maximum and sum, then read and replaced by its gradient; scaled backward
FUSED_LOSS: Passes = (("online_softmax", 0, 1), ("softmax_grad", 0, 2))
FUSED_LOSS_BACKWARD: Passes = (("scale", 0, 2),)


def moved(passes: Passes, e: int) -> tuple[tuple[str, int], ...]:
    """Return the name and the bytes per element of each operator.

    >>> sum(size for _, size in moved(NORM, 2)), sum(size for _, size in moved(NORM_BACKWARD, 2))
    (36, 92)
    """
    return tuple((name, wide + own * e) for name, wide, own in passes)
