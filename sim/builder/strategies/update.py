"""What an update moves and what the optimizer keeps of a parameter, in bytes.

Without ``training.optimizer_state`` it follows Megatron-LM's mixed precision: gradients of 16 bits
are copied to fp32, Adam runs in fp32, and weights of 16 bits are copied after it. With a table one
kernel reads gradients as they are and also writes the weights, as those of torch (``fused``) and
Transformer Engine (transformer_engine/pytorch/optimizers/fused_adam.py) do. For state with a scale,
fp8 and fp16, Transformer Engine makes fp32 copies before the update, all at once, and after it
computes maxima and scales and casts back.
"""

from __future__ import annotations

from math import prod

from sim import strategies
from sim.model.sizes import BYTES
from sim.recipe.recipe import TrainingSection
from sim.recipe.sections import SCALED, StateTable

MAIN = 4  # bytes of a gradient and of a parameter in Adam's arithmetic
ADAM = 3 * 4 + 3 * 4 + MAIN  # read and write parameter and both moments, read the gradient
FOREACH = (  # torch/optim/adamw.py, _multi_tensor_adamw, in fp32: tensors read and written
    ("decay", 2 * MAIN), ("first_moment", 3 * MAIN), ("second_moment_scale", 2 * MAIN),
    ("second_moment", 3 * MAIN), ("root", 2 * MAIN), ("bias_correction", 2 * MAIN),
    ("epsilon", 2 * MAIN), ("step", 4 * MAIN),
)  # fmt: skip
UPDATES = {"adam": ADAM, "sgd": 2 * 4 + MAIN}
"""Bytes per parameter that an optimizer moves; SGD without momentum only has the parameter."""
WIDEN = {"fp8": 1 + MAIN, "fp16": 2 + MAIN + 2 * MAIN}  # cast; fp16 also times its scale
NARROW = {"fp8": MAIN + MAIN + 1, "fp16": MAIN + 2 * MAIN + MAIN + 2}  # maximum, (scaled,) cast
assert tuple(WIDEN) == tuple(NARROW) == SCALED


def kept(training: TrainingSection) -> int:
    """Return the bytes per parameter of the master copy and of the moments."""
    if training.optimizer != "adam":
        return _master(training)
    return _master(training) + (training.optimizer_state or StateTable()).moments


def on_gpu(training: TrainingSection) -> float:
    """Return the share of the parameters that the GPU updates."""
    return float(prod(share(training) for share in strategies.hooks("on_gpu")))


def _master(training: TrainingSection) -> int:
    return (training.optimizer_state or StateTable()).copy_of(training.dtype)


def seen(training: TrainingSection) -> int:
    """Return the bytes of a gradient for the kernels that find its norm, clip and unscale it."""
    return BYTES[training.grad_dtype] if training.optimizer_state else MAIN


def kernels(training: TrainingSection, narrow: float) -> list[tuple[str, float]]:
    """Return the kernels of an update and the bytes that each moves per parameter.

    ``narrow`` is the mean number of bytes by which fp8 weights are smaller than their dtype.
    """
    weight = BYTES[training.dtype]
    if training.optimizer_state is None:
        copied = [("copy_weights", MAIN + weight - narrow)] if weight < MAIN else []
        if training.foreach:
            return [*((f"adam_{name}", float(size)) for name, size in FOREACH), *copied]
        return [(training.optimizer, UPDATES[training.optimizer]), *copied]
    state, dtype = training.optimizer_state, training.dtype
    wide = state.widened(dtype)
    before = [("widen_state", float(sum(WIDEN[dtype] for dtype in wide)))] if wide else []
    after = [("narrow_state", float(sum(NARROW[dtype] for dtype in wide)))] if wide else []
    return [*before, (training.optimizer, _fused(state, training, narrow)), *after]


def _fused(state: StateTable, training: TrainingSection, narrow: float) -> float:
    """Return the bytes per parameter of one fused kernel.

    It reads the gradient, writes the weight, reads the weight unless there is a whole master copy,
    and reads and writes the rest.
    """
    weight, master = BYTES[training.dtype], state.copy_of(training.dtype)
    read = 0 if master and state.master != "remainder" else weight
    moved = [MAIN if dtype in SCALED else BYTES[dtype] for dtype in (state.first, state.second)]
    own = MAIN if master and state.master in SCALED else master
    return BYTES[training.grad_dtype] + weight - narrow + read + 2 * (own + sum(moved))


def widened(training: TrainingSection) -> int:
    """Return the bytes per parameter of the fp32 copies during an update.

    PyTorch's foreach operators hold the roots of all second moments.
    """
    if training.foreach:
        return MAIN
    state = training.optimizer_state
    return MAIN * len(state.widened(training.dtype)) if state else 0


def on_host(training: TrainingSection) -> int:
    """Return the bytes per parameter that the host moves.

    It reads and writes its copy and the moments, and reads an fp32 gradient.
    """
    state = training.optimizer_state or StateTable()
    return 2 * (BYTES[state.master] + state.moments) + MAIN
