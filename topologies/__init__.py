"""Machines and fabrics, one TOML file each; :func:`sim.machine.cluster.load` reads them by name.

Adding a machine is adding a file: values carry their units as text, and every table that holds
numbers says in ``source`` where they come from. A file may name another as its ``base`` and then
states only what differs.
"""

from __future__ import annotations

from importlib.resources import files

from schedules.input_error import InputError


def names() -> list[str]:
    """List the topologies there are: one per TOML file in this folder.

    >>> "dgx_a100" in names()
    True
    """
    entries = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".toml") for name in entries if name.endswith(".toml"))


def text(name: str) -> str:
    """Return the text of that topology's file.

    Raises InputError, naming those there are, when there is none of that name.
    """
    if name not in names():
        raise InputError(f"no topology {name!r}; there are {', '.join(names())}")
    return (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
