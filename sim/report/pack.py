"""The columns of a page as one block of bytes, gzipped and in base64, and where each column lies.

A column has the narrowest type that its values allow, so that the page is small and equal data
gives equal bytes.
"""

from __future__ import annotations

import base64
import gzip
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_WHOLE = (np.uint8, np.int8, np.uint16, np.int16, np.uint32, np.int32)
_ALIGN = 8  # bytes: where a typed array of any kind may begin


class Ticks(NamedTuple):
    """Times as whole ticks from a zero on: exact to 2**-32 of the span, in half the bytes."""

    zero: float  # seconds
    tick: float  # seconds

    def of(self, seconds: NDArray[np.float64]) -> NDArray[np.uint32]:
        """Return the tick that is nearest to each time in ``seconds``."""
        ticks = np.rint((seconds - self.zero) / self.tick) if self.tick else seconds * 0.0
        return np.clip(ticks, 0, 2**32 - 1).astype(np.uint32)


def ticks(zero: float, end: float) -> Ticks:
    """Return ticks that span from ``zero`` to ``end``, in seconds."""
    return Ticks(zero, (end - zero) / (2**32 - 1))


class Packer:
    """A block of bytes to which columns are added one behind another.

    >>> packer = Packer()
    >>> packer.add([1, 300]), packer.add([-1, 5])
    ({'type': 'Uint16', 'at': 0, 'rows': 2}, {'type': 'Int8', 'at': 8, 'rows': 2})
    """

    def __init__(self) -> None:
        self._bytes = bytearray()

    def add(self, values: ArrayLike) -> dict[str, Any]:
        """Append a column and say where it lies: whole numbers narrowed, others as Float32."""
        column = _narrow(np.asarray(values))
        at = len(self._bytes)
        self._bytes += column.tobytes()
        self._bytes += bytes(-len(self._bytes) % _ALIGN)
        name = column.dtype.name.capitalize()
        return {"type": name, "at": at, "rows": len(column)}

    def text(self) -> str:
        """Return all columns, gzipped without a time stamp, in base64."""
        return base64.b64encode(gzip.compress(bytes(self._bytes), 6, mtime=0)).decode()


def _narrow(column: NDArray[Any]) -> NDArray[Any]:
    """Return the values, little-endian, in the narrowest type that holds them."""
    if column.dtype.kind == "f":
        return column.astype("<f4")
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for kind in _WHOLE:
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return column.astype(np.dtype(kind).newbyteorder("<"))
    raise ValueError(f"whole numbers from {low} to {high} do not fit into 32 bits")
