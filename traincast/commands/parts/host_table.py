"""What ``traincast record host`` measured, as a table."""

from __future__ import annotations

from pathlib import Path

from sim.machine.host_prices import prices
from traincast.commands.parts import tables

NAMES = {"gather": "gather, FSDP's hooks included", "reduce": "reduction, FSDP's hooks included"}


def show(path: Path) -> None:
    """Print what each class of op of the file costs the CPU, and what to do with the file."""
    found = prices(str(path))
    rows = [
        (NAMES.get(kind, kind.replace("_", " ")), forward, found.backward[kind])
        for kind, forward in found.forward.items()
    ]
    sides = ("forward", 1, "s"), ("backward", 2, "s")
    tables.show(rows, "to issue one, the CPU takes", *sides)
    tables.say(f'next: [simulation] host = "{path.name}" in a recipe in the same folder')
