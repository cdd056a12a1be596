"""Units: SI floats inside (seconds, bytes, FLOP/s), text with a unit in files and in output."""

from __future__ import annotations

import re

from schedules.input_error import InputError

BYTES = {"fp8": 1, "bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
"""Bytes of one element in memory, by dtype."""

LEAST = 1e-9
"""Seconds: a shorter time is 0 but for rounding."""
_PREFIX = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3}
_PREFIX |= {"M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_PREFIX |= {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_NUMBER = "[0-9.]+([eE][+-]?[0-9]+)?"


def parse(text: str, unit: str) -> float:
    """Return the number of ``unit`` that ``text`` states, such as "450 GB/s".

    Raises InputError for a text that is not such a number, or a negative one.

    >>> parse("450 GB/s", "B/s")
    450000000000.0
    >>> parse("2 us", "s")
    2e-06
    """
    number, _, symbol = text.strip().partition(" ")
    prefix = symbol.removesuffix(unit)
    try:
        value = float(number) if re.fullmatch(_NUMBER, number) else float("nan")
    except ValueError:  # such as 1.2.3
        value = float("nan")
    if not symbol.endswith(unit) or prefix not in _PREFIX or not value >= 0:
        usual = "50 ms" if unit == "s" else f"1.5 G{unit}"
        raise InputError(f"{text!r} is not a number of {unit}, such as {usual!r}")
    return value * _PREFIX[prefix]


def pattern(unit: str) -> str:
    """Return a regular expression for the texts that :func:`parse` takes for ``unit``.

    >>> import re
    >>> [bool(re.search(pattern("B/s"), text)) for text in ("450 GB/s", "4.5e2 GiB/s", "450 GB")]
    [True, True, False]
    """
    return rf"^{_NUMBER} ({'|'.join(_PREFIX)}){unit}$"


def seconds(value: float) -> str:
    """Return a duration, given in seconds, as text with three or four digits.

    >>> seconds(13.752), seconds(0.000603), seconds(-2.8e-17)
    ('13.75 s', '603.0 us', '0 s')
    """
    if abs(value) < LEAST:
        return "0 s"
    for prefix, scale in (("", 1.0), ("m", 1e-3), ("u", 1e-6)):
        if abs(value) >= scale:
            return (
                f"{value / scale:.4g} {prefix}s"
                if value / scale < 100
                else (f"{value / scale:.1f} {prefix}s")
            )
    return f"{value / 1e-9:.4g} ns"


def size(value: float) -> str:
    """Return a number of bytes as text in binary units.

    >>> size(80 * 2**30), size(1536), size(12)
    ('80.00 GiB', '1.50 KiB', '12 B')
    """
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        if abs(value) >= _PREFIX[prefix]:
            return f"{value / _PREFIX[prefix]:.2f} {prefix}B"
    return f"{value:.0f} B"
