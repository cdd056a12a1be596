"""Sizes of the models whose parallel training is recorded, as a command gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from schedules.input_error import InputError

SIZES = {"blocks": 8, "d": 256, "heads": 4, "ffn": 1024, "seq": 128, "mb": 4, "bucket_mb": 4}
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}


def parsed(text: str) -> dict[str, int]:
    """Return sizes from the text of ``--sizes``.

    >>> parsed("blocks=4,d=128")
    {'blocks': 4, 'd': 128}
    """
    out: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in SIZES:
            raise InputError(f"--sizes takes {', '.join(SIZES)}, not {key!r}")
        if not value.isdecimal() or not int(value):
            raise InputError(f"--sizes: {key} is a whole number from 1 on, not {value!r}")
        if len(value) > 7:  # no process holds a model with tens of millions in any of these sizes
            raise InputError(f"--sizes: {key}={value} is more than a process can hold")
        if key in out:
            raise InputError(f"--sizes names {key} twice")
        out[key] = int(value)
    return out


def task_of(mode: str, sizes: Mapping[str, int], optimizer: str, ranks: int) -> dict[str, Any]:
    """Return what a worker is told; an MLP is 4 times as wide as the model unless given.

    Raises InputError for sizes that no model has.
    """
    if optimizer.lower() not in OPTIMIZERS:
        raise InputError(f"--optimizer is {' or '.join(OPTIMIZERS)}, not {optimizer!r}")
    wide = {"ffn": 4 * sizes["d"]} if "d" in sizes else {}
    some = {**SIZES, **wide, **sizes}
    if some["d"] % some["heads"]:
        raise InputError(f"d={some['d']} is no multiple of heads={some['heads']}; change one")
    for key in ("heads", "ffn") if mode == "tp" else ():
        if some[key] % ranks:
            raise InputError(f"{key}={some[key]} cannot be split over {ranks} ranks; change one")
    bucket = some.pop("bucket_mb") << 20
    buckets = mode in ("ddp", "ddp_hook", "zero1")
    return {
        "task": "parallel_run", "mode": mode, "warm": 2, "profiled_warm": 2, **some, "vocab": 0,
        "activation": "gelu", "optimizer": "" if mode in ("ring", "moe") else
        OPTIMIZERS[optimizer.lower()], "bucket_bytes": bucket if buckets else 0, "dtype": "float32",
    }  # fmt: skip
