"""What is trained: the sizes of a model, its parameters and its floating-point operations.

Nothing here knows of kernels or of time. The kernels of one layer are in :mod:`sim.model.layer`;
their sums must agree with the formulas here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sim import strategies
from sim.model import resnet
from sim.model.kernel_choice import USUAL, Kernels
from sim.model.kinds import kind_of
from sim.model.resnet import Resnet
from sim.model.routing import BALANCED, ExpertLoad
from sim.units import BYTES as BYTES

if TYPE_CHECKING:
    from sim.model.part import Part


class Mla(NamedTuple):
    """Widths of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1)."""

    q_lora_rank: int  # width of the queries' latent; 0: queries come from the residual stream
    kv_lora_rank: int  # width of the latent of keys and values
    qk_nope_head_dim: int  # width of the unrotated part of a query or key head
    qk_rope_head_dim: int  # width of the rotated part, which all key heads share
    v_head_dim: int

    @property
    def qk_head_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class Recurrence(NamedTuple):
    """Sizes of layers that have a state, not keys: Mamba-2, or a gated delta net."""

    heads: int
    head_dim: int  # width of a head's values
    groups: int  # heads of keys and queries (of B and C), each of which several heads share
    state: int  # width of a key (of B and C)
    convolution: int = 4  # tokens that the convolution before the scan mixes
    chunk: int = 128  # tokens that meet by products of matrices


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer, or with ``resnet`` a residual network, which has no other sizes.

    ``ffn`` is the width of the MLP (of each of its two halves when gated), ``positions`` the rows
    of a learned position table. The vocabulary is padded to a multiple of ``vocab_padding`` × tp;
    with no vocabulary there are only the layers, without embedding, final norm, head and loss. With
    ``experts`` every layer but the first ``dense_layers``, or those that ``feed_forward`` names,
    sends each token to ``topk`` of them and to all ``shared_experts``. All experts are MLPs of
    width ``expert_ffn``, gated if the model is.
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
    norm: str  # layer | rms; batch | sync_batch of a residual network
    attention: str  # unfused, or who chooses the fused kernel, or that kernel: flash, flash2, ...
    activation: str  # gelu | silu | relu2; gated silu is SwiGLU
    qkv_bias: bool
    bias: bool  # whether the other linears have a bias
    position: str  # learned | rope | none
    dropout: float
    vocab_padding: int
    positions: int
    sequence: int = 0  # tokens per sample; an image counts as one
    fused: bool | str = (
        True  # one kernel for activation and gate, loss in place; "except_gate": only the loss
    )
    experts: int = 0
    topk: int = 0
    expert_ffn: int = 0
    shared_experts: int = 0
    dense_layers: int = 0
    capacity_factor: float | None = None  # None: nothing is dropped
    load: ExpertLoad = BALANCED
    mla: Mla | None = None
    pattern: tuple[str, ...] = ()  # what mixes tokens, layer by layer, over and over; (): full
    feed_forward: tuple[str, ...] = ()  # what follows, likewise; (): experts where there are any
    recurrence: Recurrence | None = None
    window: int = 0  # tokens that sliding attention looks back on, or of a chunk
    sinks: bool = False  # a learned logit per head beside those of the keys
    qk_norm: str = ""  # RMS norms of queries and keys: head (each head) | whole (all of them)
    norm_place: str = "before"  # before | after | both: of what a norm stands in each part
    output_gate: bool = False  # attention's output times the sigmoid of a projection
    shared_gate: bool = False  # the shared experts' output times the sigmoid of a projection
    mtp: int = 0  # depths of multi-token prediction, each with a layer like the last one
    kernels: Kernels = USUAL
    resnet: Resnet | None = None

    def kind(self, layer: int) -> tuple[str, ...]:
        """Return the kinds of a layer's parts, each a file of :mod:`sim.model.layers`.

        A layer that a feature adds after the last one is as the last.
        """
        if self.resnet:
            return ("convolution",)
        layer = min(layer, self.layers - 1)
        mixer = self.pattern[layer % len(self.pattern)] if self.pattern else "full"
        usual = self.feed_forward or ("experts" if self.experts else "dense",)
        then = "dense" if layer < self.dense_layers else usual[layer % len(usual)]
        mixer = "latent" if self.mla and mixer == "full" else mixer
        return tuple(kind for kind in (mixer, then) if kind != "none")

    def like(self, layer: int) -> int:
        """Return the number of the first layer of the same kind."""
        return layer if self.resnet else _firsts(self)[self.kind(layer)]

    @property
    def kinds(self) -> tuple[tuple[int, int], ...]:
        """The number of the first layer of each kind, and how many layers of it there are."""
        return tuple(Counter(map(self.like, range(self.layers))).items())


@cache
def _firsts(model: Model) -> Mapping[tuple[str, ...], int]:
    """Return the number of the first layer of each kind."""
    return {model.kind(i): i for i in reversed(range(model.layers))}


def parts(model: Model, layer: int) -> tuple[Part, ...]:
    """Return the parts of a layer, in forward order."""
    return tuple(kind_of(name)(model, layer) for name in model.kind(layer))


def model_of(numbers: Mapping[str, Any], seed: int = 0) -> Model:
    """Return a model from the complete numbers of a recipe; ``seed`` is that of a random load."""
    if numbers.get("blocks"):
        return _residual(numbers)
    known = {key: numbers[key] for key in Model.__dataclass_fields__ if key in numbers}
    known |= {key: tuple(known[key]) for key in ("pattern", "feed_forward") if key in known}
    if "mla" in known:
        known["mla"] = Mla(**known["mla"])
    if "recurrence" in known:
        known["recurrence"] = Recurrence(**known["recurrence"])
    if "load" in known:
        known["load"] = ExpertLoad(**{"seed": seed, **known["load"]})
    if "kernels" in known:
        known["kernels"] = Kernels(**known["kernels"])
    return Model(**known)


def _residual(numbers: Mapping[str, Any]) -> Model:
    """Return a residual network; stem and blocks are its layers, its head's token is an image."""
    net = Resnet(tuple(numbers["blocks"]), numbers["image"], numbers["classes"])
    unused: dict[str, Any] = {
        **dict.fromkeys(("heads", "kv_heads", "head_dim", "ffn", "vocab_padding"), 1),
        **dict.fromkeys(("gated", "tied", "qkv_bias", "bias"), False),
        **dict.fromkeys(("attention", "position"), "none"),
    }
    return Model(
        **unused,
        name=numbers["name"],
        layers=net.layers,
        hidden=net.features,
        vocab=net.classes,
        norm=numbers["norm"],
        activation="relu",
        dropout=0.0,
        positions=0,
        sequence=1,
        resnet=net,
    )


class Parameters(NamedTuple):
    """Numbers of parameters that one rank of a stage holds."""

    linear: int = 0  # matrices of the layers and the biases that are split with them
    row_bias: int = 0  # biases of row-parallel linears, a whole copy on each tensor-parallel rank
    norm: int = 0  # norms, the final one included, a whole copy on each tensor-parallel rank
    embedding: int = 0  # this rank's rows of the word embedding
    positions: int = 0  # the learned position table, a whole copy
    head: int = 0  # this rank's rows of the output matrix; a second copy of the embedding when tied
    replicated: int = 0  # routers and MLA's matrices into latents, a whole copy
    expert: int = 0  # this rank's experts; their gradients are reduced over edp, not over dp

    @property
    def total(self) -> int:
        """Number of all parameters."""
        return sum(self)

    def plus(self, others: Parameters, times: int) -> Parameters:
        """Return the numbers with others added so many times."""
        return Parameters(*(mine + times * more for mine, more in zip(self, others, strict=True)))


def padded_vocab(model: Model, tp: int = 1) -> int:
    """Return the rows of the word embedding over all tp ranks, padded as in Megatron."""
    multiple = model.vocab_padding * tp
    return math.ceil(model.vocab / multiple) * multiple


def parameters(
    model: Model,
    tp: int,
    layers: Sequence[int],
    first: bool,
    last: bool,
    ep: int = 1,
    etp: int = 1,
) -> Parameters:
    """Return what one of ``tp`` ranks holds of a stage with these layers (their numbers).

    Each of ``ep`` ranks holds the same number of experts, each split over ``etp``. KV heads are
    replicated where tp exceeds them. Tied matrices are held once by a stage that is both first and
    last, and otherwise by the first and by the last stage.
    """
    h, rows = model.hidden, padded_vocab(model, tp) // tp
    held = Parameters(
        norm=(model.vocab > 0) * last * norm_parameters(model),
        embedding=rows * h * first,
        positions=model.positions * h * (first and model.position == "learned"),
        head=rows * h * (last and not (first and model.tied)),
    )
    if model.resnet:
        held = Parameters(head=resnet.head_parameters(model.resnet) * last)
    for part, count in _on_stage(model, layers, last):
        held = held.plus(part.parameters(tp, ep, etp), count)
    return held._replace(embedding=min(held.embedding, rows * h))  # which is held once


def _on_stage(model: Model, layers: Sequence[int], last: bool) -> Iterator[tuple[Part, int]]:
    """Yield the parts of a stage's layers, those of equal layers once, with their numbers."""
    for i, count in Counter(map(model.like, with_further(model, layers, last))).items():
        yield from ((part, count) for part in parts(model, i))
    for before in further(model) if last else ():
        yield from ((part, 1) for part in before)


def further(model: Model) -> Sequence[tuple[Part, ...]]:
    """Return, for each layer that features add after the last one, the parts that precede it."""
    return [before for found in strategies.hooks("further") for before in found(model)]


def with_further(model: Model, layers: Sequence[int], last: bool) -> tuple[int, ...]:
    """Return the numbers of a stage's layers, on the last stage also of those that features add."""
    return (*layers, *range(model.layers, model.layers + len(further(model)) * last))


def matrix_parameters(
    model: Model, tp: int, layers: Sequence[int], last: bool = False, ep: int = 1, etp: int = 1
) -> int:
    """Return the elements of the layers' matrices but for the router's: what fp8 multiplies."""
    return sum(n * part.matrices(tp, ep, etp) for part, n in _on_stage(model, layers, last))


def norm_parameters(model: Model) -> int:
    """Return the parameters of one normalisation: a scale, and for a layer norm a shift."""
    return model.hidden * (2 if model.norm == "layer" else 1)


def total_parameters(model: Model) -> int:
    """Return the parameters of the whole model, its vocabulary without padding.

    For GPT that is 12 L h² (1 + 13 / 12h + (V + s) / 12hL) (Narayanan et al. 2021, equation 2) and
    the final norm.
    """
    whole = parameters(model, 1, range(model.layers), first=True, last=True)
    copies = 1 if model.tied else 2
    return whole.total - (padded_vocab(model) - model.vocab) * model.hidden * copies


def active_parameters(model: Model) -> int:
    """Return the parameters that a token uses: all but the experts that it is not sent to."""
    held = _on_stage(model, range(model.layers), last=True)
    return total_parameters(model) - sum(n * part.idle() for part, n in held)


def layer_flops(model: Model, batch: int, sequence: int, layer: int = 0) -> float:
    """Return a layer's forward FLOPs: matrix products, attention over the full sequence squared.

    Routed layers count the router and the experts that a token is sent to; no token counts as
    dropped.
    """
    linear = 2.0 * (batch * sequence) * sum(part.used() for part in parts(model, layer))
    return linear + attention_flops(model, batch, sequence, layer)


def attention_flops(model: Model, batch: int, sequence: int, layer: int = 0) -> float:
    """Return a layer's forward FLOPs beside its matrices: those of scores and context.

    The causal mask is not used.
    """
    return math.fsum(part.core(batch, sequence) for part in parts(model, layer))


def model_flops(model: Model, batch: int, sequence: int, tp: int = 1) -> float:
    """Return the FLOPs of one step over ``batch`` sequences, recomputation not counted.

    For GPT that is 72 B L s h² (1 + s / 6h + V / 12hL) (Narayanan et al. 2021, equation 3, without
    its recomputation; Korthikanti et al. 2022, equation 8), with V padded for ``tp``. Here it also
    covers grouped queries, latent attention, gated MLPs, experts, any head size, and what features
    add. For a residual network it counts ``batch`` images.
    """
    if model.resnet:
        return float(batch * resnet.step_flops(model.resnet))
    head = 2.0 * batch * sequence * model.hidden * padded_vocab(model, tp)
    layers = math.fsum(count * layer_flops(model, batch, sequence, i) for i, count in model.kinds)
    forward = layers + head
    for more in strategies.hooks("flops"):
        forward += more(model, batch, sequence, head)
    return 3 * forward


def mlp_matrices(model: Model, width: int) -> int:
    """Return the elements of the matrices of an MLP of this inner width."""
    return model.hidden * width * (3 if model.gated else 2)
