"""Which engine runs a graph: SimPy's, or the compiled one where that pays."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import NamedTuple

from schedules.input_error import InputError

PAYS = 200_000
"""Ops from which on the compiled engine saves more than it takes to load: 0.8 s of CPU time,
against 4 us per op or more. It is compiled once per machine."""


class Engine(NamedTuple):
    """An engine, and why it is the one."""

    name: str  # simpy or compiled
    reason: str


def chosen(engine: str, ops: int) -> Engine:
    """Return the engine that runs a graph of so many ops where a recipe says ``engine``.

    Both give the same timeline, to the bit. Raises InputError if "compiled" is asked for and cannot
    run here.
    """
    if engine == "compiled":
        if missing():
            raise InputError(
                f'simulation.engine = "compiled" needs Numba ({missing()}); install traincast[fast]'
            )
        return Engine("compiled", "asked for")
    if engine == "simpy":
        return Engine("simpy", "asked for")
    if ops + _swept < PAYS:
        return Engine("simpy", f"fewer than {PAYS:,} ops")
    if missing():
        return Engine("simpy", f"Numba: {missing()}")
    return Engine("compiled", f"{PAYS:,} ops or more")


_swept = 0


def swept(ops: int) -> None:
    """Count a configuration of a sweep's worker: many small graphs pay together, too."""
    global _swept
    _swept += ops


@cache
def missing() -> str:
    """Return why Numba cannot be used here; empty if it can."""
    try:
        import_module("numba")
    except ImportError as error:
        return str(error)
    return ""
