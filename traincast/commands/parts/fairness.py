"""What ``traincast compare`` says of how its ways were made comparable."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from schedules.input_error import InputError
from sim import units
from sim.keys.refusals import brief
from sim.runs.compare import Way
from sim.runs.fair import Fit
from traincast.commands.parts import tables
from traincast.commands.parts.figures import MESSAGES

_SIZE = re.compile(r"([0-9.]+) ?([kMGT]i?B)")


def size(text: str) -> float:
    """Return the bytes of a ``--memory``.

    >>> size("80GB"), size("1.5 GiB")
    (80000000000.0, 1610612736.0)
    """
    found = _SIZE.fullmatch(text.strip())
    try:
        limit = units.parse(" ".join(found.groups()), "B") if found else 0.0
    except InputError:
        limit = 0.0
    if limit <= 0:
        raise InputError(f"--memory takes bytes of a GPU, such as 80GB or 80GiB, not {brief(text)}")
    return limit


def show_messages(ways: Sequence[Way]) -> None:
    """Say how each schedule sent its messages."""
    by = dict[str, list[str]]()
    for way in ways:
        if way.result and "pipeline" in way.result.summary:
            by.setdefault(way.result.summary["pipeline"]["p2p"], []).append(way.name)
    if by:
        said = [f"{MESSAGES[p2p]} ({', '.join(names)})" for p2p, names in by.items()]
        tables.say(f"messages: {'; '.join(said)}")


def show_balanced(ways: Sequence[Way], kept: int) -> None:
    """Say which schedules' stages were balanced; those with ``kept`` stages have the recipe's."""
    ran = {way.name: len(way.result.recipe.layers_per_stage) for way in ways if way.result}
    names = [name for name, stages in ran.items() if stages != kept]
    if names:
        which = "all" if len(names) == len(ran) else ", ".join(names)
        tables.say(f"stages are balanced by simulated runtime: {which}")


def with_chosen(rows: Sequence[Mapping[str, Any]], fits: Mapping[str, Fit]) -> list[dict[str, Any]]:
    """Return rows of JSON with what was chosen for each way to fit the memory."""
    said = {name: {"chosen": fit.chosen} for name, fit in fits.items() if fit.chosen}
    return [{**row, **said.get(row["name"], {})} for row in rows]


def show_fits(fits: Mapping[str, Fit], limit: float) -> None:
    """Say with what each way fits the memory."""
    by = dict[str, list[str]]()
    for name, fit in fits.items():
        if fit.chosen:
            by.setdefault(fit.chosen, []).append(name)
    for chosen, names in by.items():
        tables.say(f"the most that fits {units.size(limit)}: {chosen} ({', '.join(names)})")
