"""Reads what is assumed of machines: ``assumed.toml``, the one file of such values."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple


class Assumed(NamedTuple):
    """An assumed value, and the ends of the range in which it lies."""

    value: float
    low: float
    high: float


_OTHERS: ContextVar[Mapping[str, float] | None] = ContextVar("_OTHERS", default=None)


def assumed(section: str) -> Mapping[str, float]:
    """Return the values of a section by name.

    >>> assumed("attention")["cudnn_a100"]
    1.0
    """
    usual, others = _usual(section), _OTHERS.get()
    if not others:
        return usual
    return {name: others.get(f"{section}.{name}", value) for name, value in usual.items()}


@contextmanager
def assuming(name: str, value: float) -> Iterator[None]:
    """Let a value be another one for what runs inside.

    >>> with assuming("power.floor", 0.6):
    ...     assumed("power")["floor"]
    0.6
    """
    before = _OTHERS.set({**(_OTHERS.get() or {}), name: value})
    try:
        yield
    finally:
        _OTHERS.reset(before)


def changed() -> tuple[tuple[str, float], ...]:
    """Return the values that are others now, by section and name.

    >>> with assuming("power.floor", 0.6):
    ...     changed()
    (('power.floor', 0.6),)
    """
    return tuple((_OTHERS.get() or {}).items())


@cache
def ranges() -> Mapping[str, Assumed]:
    """Return every value with its range, by section and name.

    >>> ranges()["power.exponent"]
    Assumed(value=3.0, low=2.2, high=3.2)
    """
    return {
        name: Assumed(*map(float, (of["value"], *of["range"]))) for name, of in _entries().items()
    }


def affects() -> Mapping[str, str]:
    """Return in words what hangs on every value, by section and name.

    >>> affects()["power.floor"]
    'boards whose cap is far below the rated power'
    """
    return {name: of["affects"] for name, of in _entries().items()}


@cache
def _entries() -> Mapping[str, Mapping[str, Any]]:
    text = (files("sim.machine") / "assumed.toml").read_text(encoding="utf-8")
    return {
        f"{section}.{name}": of
        for section, entries in tomllib.loads(text).items()
        for name, of in entries.items()
    }


@cache
def _usual(section: str) -> Mapping[str, float]:
    split = ((*name.partition("."), of.value) for name, of in ranges().items())
    return {name: value for of, _, name, value in split if of == section}
