"""Reads what is assumed of machines: ``assumed.toml``, the one file of such values."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files


@cache
def assumed(section: str) -> Mapping[str, float]:
    """Return the values of a section by name.

    >>> assumed("attention")["cudnn_a100"]
    1.0
    """
    text = (files("sim.machine") / "assumed.toml").read_text(encoding="utf-8")
    return {name: float(entry["value"]) for name, entry in tomllib.loads(text)[section].items()}
