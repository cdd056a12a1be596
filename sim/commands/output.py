"""JSON on standard output."""

from __future__ import annotations

import json
from typing import Any

from sim.files import replacing, writable, write_text

__all__ = ["print_json", "replacing", "writable", "write_text"]


def print_json(data: object) -> None:
    """Write data as JSON to standard output, NumPy's numbers included."""
    print(json.dumps(data, indent=2, default=_plain))


def _plain(value: Any) -> object:
    return value.tolist() if hasattr(value, "tolist") else str(value)
