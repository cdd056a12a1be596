"""Which table of constants a kernel of fused attention has in a topology: ``[gpu.attention.NAME]``.

``model.attention`` names a kernel, or who chooses it on that GPU: ``flash`` (Transformer Engine) or
``sdpa`` (PyTorch). In the topology such a name has another kernel's name for a value. Constants in
``[gpu.attention]`` itself hold for every kernel; if they are complete, no other table is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from schedules.input_error import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KERNELS = ("triton", "flash2", "flash3", "cudnn")
"""Kernels of fused attention; ``triton`` is also the first FlashAttention."""
CHOSEN = ("flash", "sdpa")
"""Who chooses: Transformer Engine (Megatron-LM, NeMo), PyTorch's scaled_dot_product_attention."""
ADVICE = 'base = "dgx_a100", or another topology that has it, or a copy of its table would do'
NEEDED = ("forward", "backward", "keys", "quantisation", "memory", "fixed")
"""The constants that a kernel must have; the others have defaults."""

Array: TypeAlias = "float | NDArray[np.float64]"
Shares = tuple[tuple[float, float], ...]
"""Head dimensions in ascending order, and the share of the peak at each."""


class AttentionConstants(NamedTuple):
    """Constants of a kernel of fused attention."""

    forward: Shares  # share of the peak at infinite keys
    backward: Shares
    keys: float  # keys per query at which half of the forward's share is reached
    backward_keys: float
    masked: float  # keys per query that a causal mask costs: the diagonal's blocks are whole
    head_dim: float  # head dimension at which half of the share is reached
    quantisation: float  # 1: a partial last wave costs a whole one; 0: it costs its part
    memory: float  # share of the HBM bandwidth
    fixed: float  # seconds

    def share(self, dim: Array, backward: bool) -> Array:
        """Return the share of the peak at infinite keys for one head dimension, or an array.

        Between two head dimensions of the table it is interpolated. Below the first, a kernel does
        the work of that one; above the last, the share stays.
        """
        import numpy as np  # which only prices need; recipes are read without it

        dims, shares = zip(*(self.backward if backward else self.forward), strict=True)
        at_dim: Array = np.interp(dim, (0.0, *dims), (0.0, *shares))
        return at_dim / (1.0 + self.head_dim / dim)


def attention_constants(tables: Mapping[str, Any], kernel: str) -> AttentionConstants:
    """Return the constants of a kernel, or of one that a name in ``CHOSEN`` stands for.

    ``tables`` is the topology's ``[gpu.attention]``. Raises InputError where it lacks them.

    >>> one = dict(forward=0.6, backward=0.5, keys=100, quantisation=0, memory=0.8, fixed=5e-6)
    >>> attention_constants({"flash": "cudnn", "cudnn": one}, "flash").forward
    ((1.0, 0.6),)
    """
    own = {key: value for key, value in tables.items() if key in AttentionConstants._fields}
    if any(name not in own for name in NEEDED):
        own = {**_named(tables, kernel), **own}
    if lacking := [name for name in NEEDED if name not in own]:
        raise InputError(f"the table [gpu.attention] lacks {', '.join(lacking)}; {ADVICE}")
    default = {"backward_keys": own["keys"], "masked": 0.0, "head_dim": 0.0}
    numbers = {key: float(v) for key, v in (default | own).items() if key in _NUMBERS}
    return AttentionConstants(_shares(own["forward"]), _shares(own["backward"]), **numbers)


_NUMBERS = AttentionConstants._fields[2:]


def _named(tables: Mapping[str, Any], kernel: str) -> Mapping[str, Any]:
    """Return the table of a kernel; a name for a value is that of another kernel."""
    found = tables.get(kernel, {})
    found = tables.get(found, {}) if isinstance(found, str) else found
    there = [name for name in (*CHOSEN, *KERNELS) if name in tables]
    if not found and there:
        raise InputError(
            f"no constants of the attention kernel {kernel!r} on this GPU; model.attention may be "
            f"{', '.join(there)}"
        )
    return dict(found)


def _shares(value: float | Mapping[str, float]) -> Shares:
    """Return shares by head dimension; a single one holds for all."""
    if isinstance(value, Mapping):
        return tuple(sorted((float(dim), float(share)) for dim, share in value.items()))
    return ((1.0, float(value)),)
