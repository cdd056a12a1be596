"""Whether rows of a recorded sweep have what their part needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from schedules.input_error import InputError

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
"""Numbers above 0 that the rows of a part need."""


def check(path: Path, parts: Mapping[str, Sequence[Row]]) -> None:
    """Raise InputError for the first row without a number that its part has."""
    for part, keys in NUMBERS.items():
        for number, row in enumerate(parts.get(part, ()), 1):
            for key in keys:
                value = row.get(key) if isinstance(row, Mapping) else None
                if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                    raise InputError(f"{path} is damaged: row {number} of {part} has no {key}")
            if row.get("dtype", "bfloat16") not in DTYPES:
                raise InputError(f"{path} is damaged: row {number} of {part} has no known dtype")
