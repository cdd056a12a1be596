"""Numba's compiler as this engine uses it: floats as Python's, and compiled once per machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba import types
from numba.extending import intrinsic
from numba.misc.appdirs import AppDirs

from sim.engine.uses import CHAIN, COMMUNICATION, PLAIN
from sim.machine import network

HERE = Path(__file__).parent
Compiled = TypeVar("Compiled", bound=Callable[..., Any])


def entry(function: Callable[..., Any]) -> Any:
    """Return a function of half cells, integers, floats and a number, compiled at once, for C.

    It is kept with all that it calls. It takes pointers, since Numba counts references to arrays
    wherever it passes them on. No flag lets LLVM reorder or contract float operations, so each
    gives the bits of Python's.
    """
    kinds = [types.CPointer(kind) for kind in (types.int32, types.int64, types.float64)]
    signature = types.boolean(*kinds, types.int64)
    if FOLDER:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, FOLDER
        try:
            return numba.cfunc(signature, cache=True, error_model="numpy")(function)
        except OSError:  # the disk is full, or somebody else's
            pass
        finally:
            numba.config.CACHE_DIR = before
    return numba.cfunc(signature, error_model="numpy")(function)


def inner(function: Compiled) -> Compiled:
    """Return a function that only compiled ones call; it is compiled when one of these is."""
    flags = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    compiled: Compiled = numba.njit(nogil=True, error_model="numpy", **flags)(function)
    return compiled


@intrinsic  # type: ignore[untyped-decorator]
def ahead(context: Any, pointer: Any, cells: Any) -> Any:
    """Return a pointer to so many cells further on."""

    def code(_: Any, builder: Any, __: Any, of: Any) -> Any:
        return builder.gep(of[0], [of[1]])

    return pointer(pointer, cells), code


def folder() -> str:
    """Return where compiled code is kept; empty if no place can be written to.

    Its name follows from the text of everything that is compiled: Numba itself does not notice that
    a function which another one calls has changed.
    """
    text = b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))
    text += Path(network.__file__).read_bytes() + bytes((PLAIN, CHAIN, COMMUNICATION))
    name = f"traincast-{blake2b(text, digest_size=8).hexdigest()}"
    places = [os.environ.get("NUMBA_CACHE_DIR"), HERE / "__pycache__"]
    for place in (*places, AppDirs("numba").user_cache_dir):
        if place and writable(path := Path(place) / name):
            return str(path)
    return ""


def writable(path: Path) -> bool:
    """Return whether files can be made in a folder, which is made if need be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(path, os.W_OK)


FOLDER = folder()
