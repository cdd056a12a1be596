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
_LONG = {"min": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNTS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


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


def duration(text: str) -> float:
    """Return the seconds of a time that may be long: in s and its prefixes, min, h or d.

    Raises InputError for a text that is not such a time, or 0.

    >>> duration("54 d"), duration("6s"), duration("1.5 min")
    (4665600.0, 6.0, 90.0)
    """
    found = re.fullmatch(rf"({_NUMBER}) ?([a-z]+)", text.strip())
    if found:
        number, name = found[1], found[3]
        scale = _LONG.get(name)
        try:
            value = parse(f"{number} {name if scale is None else 's'}", "s") * (scale or 1.0)
        except InputError:
            value = 0.0
        if 0.0 < value < float("inf"):
            return value
    raise InputError(
        f"{text!r} is not a time above 0 with its unit (s, min, h or d), such as '6 s'"
    )


def amount(text: str) -> float:
    """Return a number that is written with K, M, B or T, such as one of tokens.

    Raises InputError for a text without one of these letters, and for 0.

    >>> amount("15.6T"), amount("300B")
    (15600000000000.0, 300000000000.0)
    """
    found = re.fullmatch(r"([0-9]+(\.[0-9]+)?) ?([KMBT])", text.strip())
    if not found or not float(found[1]):
        raise InputError(f"{text!r} is not a number above 0 with K, M, B or T, such as '15T'")
    return float(found[1]) * _AMOUNTS[found[3]]


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


def long(value: float) -> str:
    """Return a duration that may take days, given in seconds, as text.

    >>> long(4665600.0), long(11_137.0), long(90.0), long(6.2)
    ('54.0 days', '3.09 h', '1.5 min', '6.2 s')
    >>> long(1e300)
    '1.16e+295 days'
    """
    if value >= 1e12:
        return f"{value / _LONG['d']:.3g} days"
    for least, scale, form in ((172_800, "d", ".1f"), (7_200, "h", ".2f"), (60, "min", ".1f")):
        if value >= least:
            return f"{value / _LONG[scale]:{form}} {'days' if scale == 'd' else scale}"
    return seconds(value)


def size(value: float) -> str:
    """Return a number of bytes as text in binary units.

    >>> size(80 * 2**30), size(1536), size(12)
    ('80.00 GiB', '1.50 KiB', '12 B')
    """
    for prefix in ("Ti", "Gi", "Mi", "Ki"):
        if abs(value) >= _PREFIX[prefix]:
            return f"{value / _PREFIX[prefix]:.2f} {prefix}B"
    return f"{value:.0f} B"
