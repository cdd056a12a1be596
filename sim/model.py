"""What is trained: the sizes of a transformer, its parameters and its floating-point operations.

Nothing here knows of kernels or of time. The kernels of one layer are in :mod:`sim.layer`; their
sums must agree with the formulas here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sim.units import BYTES as BYTES


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    ``ffn`` is the width of the MLP (of each of its two halves when gated), ``positions`` the rows
    of a learned position table. The vocabulary is padded to a multiple of ``vocab_padding`` × tp.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gated: bool
    vocab: int
    tied: bool
    norm: str  # layer | rms
    attention: str  # flash | unfused
    activation: str  # gelu | silu | relu2; gated silu is SwiGLU
    qkv_bias: bool
    bias: bool  # of the other linears
    position: str  # learned | rope | none
    dropout: float
    vocab_padding: int
    positions: int


@dataclass(frozen=True)
class Setting:
    """How one rank runs its stage: what is split, how often, and what may overlap.

    ``tp_overlap`` cuts the sequence-parallel collectives into pieces beside the GEMM that feeds or
    uses them; ``tp_backward_overlap`` runs those of a column-parallel backward beside its GEMMs.
    ``cp`` ranks share each sequence, as ``cp_kind`` says, and hold parts of it as ``cp_placement``
    says; with usp, runs of ``ulysses`` ranks exchange heads. ``ep`` ranks share the experts, each
    of which is split over ``etp``.
    """

    tp: int
    sp: bool
    micro_batch: int
    sequence: int
    dtype: str = "bf16"
    grad_dtype: str = "fp32"  # of the main gradients that weight-gradient GEMMs add to
    recompute: str = "none"  # none | selective | full
    tp_overlap: bool = False
    tp_backward_overlap: bool = True
    cp: int = 1
    cp_kind: str = "ring"  # ring | ulysses | allgather | usp
    cp_placement: str = "zigzag"  # contiguous | zigzag | striped
    ulysses: int = 1
    ep: int = 1
    etp: int = 1


class Parameters(NamedTuple):
    """Parameters that one rank of a stage holds."""

    linear: int  # matrices of the layers and the biases that are split with them
    row_bias: int  # biases of row-parallel linears: a whole copy on each tensor-parallel rank
    norm: int  # likewise a whole copy, the final norm included
    embedding: int  # this rank's rows of the word embedding
    positions: int  # the learned position table, a whole copy
    head: int  # this rank's rows of the output matrix; a second copy of the embedding when tied

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


def padded_vocab(model: Model, tp: int = 1) -> int:
    """Rows of the word embedding as Megatron pads them, over all tensor-parallel ranks."""
    multiple = model.vocab_padding * tp
    return math.ceil(model.vocab / multiple) * multiple


def parameters(model: Model, tp: int, layers: Sequence[int], first: bool, last: bool) -> Parameters:
    """What one of ``tp`` ranks holds of a stage with these layers (their numbers).

    KV heads are replicated where tp exceeds them. Tied matrices are held once by a stage that is
    both first and last, and otherwise by the first and by the last stage.
    """
    count, h = len(layers), model.hidden
    width = (model.heads // tp + 2 * max(1, model.kv_heads // tp)) * model.head_dim
    attention = h * width + width * model.qkv_bias + model.heads // tp * model.head_dim * h
    fc1 = model.ffn // tp * (2 if model.gated else 1)
    mlp = h * fc1 + fc1 * model.bias + model.ffn // tp * h
    rows = padded_vocab(model, tp) // tp
    return Parameters(
        linear=count * (attention + mlp),
        row_bias=count * 2 * h * model.bias,
        norm=(2 * count + last) * norm_parameters(model),
        embedding=rows * h * first,
        positions=model.positions * h * (first and model.position == "learned"),
        head=rows * h * (last and not (first and model.tied)),
    )


def norm_parameters(model: Model) -> int:
    """Parameters of one normalisation: a scale, and for a layer norm a shift."""
    return model.hidden * (2 if model.norm == "layer" else 1)


def total_parameters(model: Model) -> int:
    """Parameters of the whole model, its vocabulary without padding.

    For GPT 12 L h² (1 + 13 / 12h + (V + s) / 12hL) (Narayanan et al. 2021, equation 2) and the
    final norm.
    """
    whole = parameters(model, 1, range(model.layers), first=True, last=True)
    copies = 1 if model.tied else 2
    return whole.total - (padded_vocab(model) - model.vocab) * model.hidden * copies


def layer_flops(model: Model, batch: int, sequence: int) -> float:
    """Forward FLOPs of one layer: matrix products, attention over the full sequence squared."""
    return _linear_flops(model, batch * sequence) + attention_flops(model, batch, sequence)


def attention_flops(model: Model, batch: int, sequence: int) -> float:
    """Forward FLOPs of scores and context of one layer, without use of the causal mask."""
    return 4.0 * batch * sequence**2 * model.heads * model.head_dim


def model_flops(model: Model, batch: int, sequence: int, tp: int = 1) -> float:
    """FLOPs of one step over ``batch`` sequences, recomputation not counted.

    For GPT 72 B L s h² (1 + s / 6h + V / 12hL) (Narayanan et al. 2021, equation 3, less its
    recomputation; Korthikanti et al. 2022, equation 8), V padded for ``tp``; here also for grouped
    queries, gated MLPs and any head size.
    """
    head = 2.0 * batch * sequence * model.hidden * padded_vocab(model, tp)
    return 3 * (model.layers * layer_flops(model, batch, sequence) + head)


def hardware_flops(
    model: Model, batch: int, sequence: int, recompute: str = "none", tp: int = 1
) -> float:
    """FLOPs of one step with those of recomputed forwards; the head is never recomputed."""
    again = {
        "none": 0.0,
        "selective": attention_flops(model, batch, sequence),
        "full": layer_flops(model, batch, sequence),
    }
    return model_flops(model, batch, sequence, tp) + model.layers * again[recompute]


def _linear_flops(model: Model, tokens: int) -> float:
    h = model.hidden
    attention = (2 * model.heads + 2 * model.kv_heads) * model.head_dim
    mlp = model.ffn * (3 if model.gated else 2)
    return 2.0 * tokens * h * (attention + mlp)
