"""What an update moves and what the optimizer keeps of a parameter, in bytes.

Unless ``training.optimizer_state`` says otherwise it is Megatron-LM's mixed precision: gradients of
16 bits are copied to fp32, Adam runs in fp32, and weights of 16 bits are copied behind it. With a
table one kernel reads gradients as they are and writes the weights too, as those of torch
(``fused``) and Transformer Engine (transformer_engine/pytorch/optimizers/fused_adam.py) do. Of what
has a scale, fp8 and fp16, Transformer Engine makes fp32 copies before the update, all at once, and
behind it finds maxima, scales and casts.
"""

from __future__ import annotations

from sim.builder.strategies.data import DataParallel
from sim.model.precision import SCALED, AdamState
from sim.model.sizes import BYTES

MAIN = 4  # bytes of a gradient and of a parameter as Adam sees them
ADAM = 3 * 4 + 3 * 4 + MAIN  # parameter, first and second moment, read and written; gradient read
UPDATES = {"adam": ADAM, "sgd": 2 * 4 + MAIN}
"""Bytes per parameter that an optimizer moves; SGD without momentum has the parameter alone."""
WIDEN = {"fp8": 1 + MAIN, "fp16": 2 + MAIN + 2 * MAIN}  # cast; of fp16 multiplied by its scale
NARROW = {"fp8": MAIN + MAIN + 1, "fp16": MAIN + 2 * MAIN + MAIN + 2}  # maximum, (scaled,) cast
assert tuple(WIDEN) == tuple(NARROW) == SCALED


def kept(data: DataParallel) -> int:
    """Bytes per parameter of the master copy and of the moments."""
    if data.optimizer != "adam":
        return _master(data)
    return _master(data) + (data.state or AdamState()).moments


def _master(data: DataParallel) -> int:
    return (data.state or AdamState()).copy(data.dtype)


def seen(data: DataParallel) -> int:
    """Bytes of a gradient as its norm, and what clips and unscales it, see it."""
    return BYTES[data.grad_dtype] if data.state else MAIN


def kernels(data: DataParallel, narrow: float) -> list[tuple[str, float]]:
    """The kernels of an update and the bytes that each moves per parameter.

    ``narrow`` are the bytes that a weight has less than its dtype's, on the mean: of those in fp8.
    """
    weight = BYTES[data.dtype]
    if data.state is None:
        copied = [("copy_weights", MAIN + weight - narrow)] if weight < MAIN else []
        return [(data.optimizer, UPDATES[data.optimizer]), *copied]
    wide = data.state.widened(data.dtype)
    before = [("widen_state", float(sum(WIDEN[dtype] for dtype in wide)))] if wide else []
    after = [("narrow_state", float(sum(NARROW[dtype] for dtype in wide)))] if wide else []
    return [*before, (data.optimizer, _fused(data.state, data, narrow)), *after]


def _fused(state: AdamState, data: DataParallel, narrow: float) -> float:
    """Gradient read; weight written, and read unless a whole master copy is; the rest both."""
    weight, master = BYTES[data.dtype], state.copy(data.dtype)
    read = 0 if master and state.master != "remainder" else weight
    moved = [MAIN if dtype in SCALED else BYTES[dtype] for dtype in (state.first, state.second)]
    own = MAIN if master and state.master in SCALED else master
    return BYTES[data.grad_dtype] + weight - narrow + read + 2 * (own + sum(moved))


def widened(data: DataParallel) -> int:
    """Bytes per parameter of the fp32 copies during an update."""
    return MAIN * len(data.state.widened(data.dtype)) if data.state else 0


def on_host(data: DataParallel) -> int:
    """Bytes per parameter that the host moves: its copy and moments both ways, an fp32 gradient."""
    state = data.state or AdamState()
    return 2 * (BYTES[state.master] + state.moments) + MAIN
