"""Whether rows of a recorded sweep have what their part needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.keys.refusals import brief
from sim.machine.kernels import MEMORY_KINDS

Row = Mapping[str, Any]

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
NUMBERS = {
    "gemm": ("m", "n", "k", "s"),
    "attention": ("batch", "heads", "sequence", "dim", "s"),
    "elementwise": ("bytes", "s"),
    "memory": ("bytes", "s"),
    "launch": ("s",),
    "block": ("hidden", "heads", "kv_heads", "head_dim", "ffn", "sequence", "micro_batch",
              "F", "B", "I", "W", "kept_bytes"),
}  # fmt: skip
"""Seconds and sizes that the rows of a part need."""
OPTIONAL = ("allocated_bytes", "output_bytes")
SECONDS = (1e-12, 1e6)
SIZES = (1, 1e15)
WORDS: Mapping[str, Mapping[str, Sequence[object]]] = {
    "gemm": {"dtype": [*DTYPES]},
    "attention": {"dtype": [*DTYPES], "what": ["forward", "backward"], "causal": [True, False]},
    "elementwise": {"kind": [*MEMORY_KINDS]},
    "memory": {"way": ["d2d", "h2d", "d2h"]},
    "block": {"dtype": [*DTYPES]},
}
"""What else they need, and what it may be."""
NAMES = {"elementwise": "name", "launch": "what"}
"""Text that they need."""


def check(path: Path, parts: Mapping[str, Sequence[Row]]) -> None:
    """Raise InputError for the first row without something that its part needs."""
    for part in NUMBERS:
        for number, row in enumerate(parts.get(part, ()), 1):
            if wrong := _wrong(part, row if isinstance(row, Mapping) else {}):
                raise InputError(f"{path} is damaged: row {number} of {part} has {wrong}")


def _wrong(part: str, row: Row) -> str:
    """Return what is wrong with a row, as text; nothing where it is right."""
    for key in (*NUMBERS[part], *(key for key in OPTIONAL if key in row)):
        if key not in row:
            return f"no {key}"
        low, high = SECONDS if key in ("s", "F", "B", "I", "W") else SIZES
        if not _is_number(row[key]) or not low <= row[key] <= high:
            return f"{key} = {brief(row[key])}; it must be a number from {low:g} to {high:g}"
    for key, known in WORDS.get(part, {}).items():
        if row.get(key) not in known:
            said = ", ".join(map(str, known))
            return f"{key} = {brief(row[key])}; it must be {said}" if key in row else f"no {key}"
    name = NAMES.get(part)
    return "" if name is None or isinstance(row.get(name), str) else f"no {name}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
