"""What ``traincast schedule`` runs: a schedule for a shape, or the order in a file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import schedules
from schedules import Plan
from schedules.from_csv import from_csv, shape
from schedules.input_error import InputError
from schedules.times import Seconds
from schedules.user_code import is_path, said
from sim.builder.strategies.exchange import Policy
from sim.keys.refusals import brief
from sim.recipe import recipe_file
from sim.runs.schedule_run import plan_of
from traincast.commands.parts.values import staged

POLICIES = ("direction", "pair", "batched")
PAIRS = ("fused", "serial")
_TYPES = {int: "a whole number", float: "a number", bool: "true or false"}


class Asked(NamedTuple):
    """The shape that was asked for; None for what was not given."""

    ranks: int | None
    microbatches: int | None
    chunks: int | None


def is_file(name: str) -> bool:
    """Return whether this is the name of an order's file; a schedule's name never is.

    >>> is_file("order.csv"), is_file("gpipe"), is_file("zbx")
    (True, False, False)
    """
    if name in schedules.names() or is_path(name):
        return False
    return name.lower().endswith(".csv") or os.path.exists(name)  # noqa: PTH110  any text


def policy(name: str, p2p: str) -> Policy:
    """Return how the ranks of a schedule exchange messages, as they do in a recipe."""
    if p2p not in POLICIES:
        raise InputError(f"--p2p is {', '.join(POLICIES[:-1])} or {POLICIES[-1]}, not {brief(p2p)}")
    return Policy(p2p, paired=name == "interleaved_1f1b")


def pair(how: str) -> str:
    """Return how overlapped pairs run where there is no machine."""
    if how == "shared":
        raise InputError(
            "--pair shared needs a GPU that the two of a pair share, so it needs a recipe; "
            "without one, --pair is fused or serial"
        )
    if how not in PAIRS:
        raise InputError(f"--pair is {' or '.join(PAIRS)}, not {brief(how)}")
    return how


def from_file(path: Path, asked: Asked, options: Mapping[str, Any], p2p: str) -> Plan:
    """Read the order in a file, which must have the shape that was asked for.

    Raises InputError when it has another.
    """
    if options:
        raise InputError(f"--option {next(iter(options))}: the order in {path} has no options")
    plan = from_csv(path, p2p)
    found = shape(plan)
    there = Asked(found.ranks, found.microbatches, found.stages // found.ranks)
    for what, wanted, is_there in zip(Asked._fields, asked, there, strict=True):
        if wanted not in (None, is_there):
            raise InputError(
                f"--{what} is {wanted}, but the order in {path} has {is_there}; leave it out"
            )
    return plan


def of_name(
    name: str,
    asked: Asked,
    options: Mapping[str, Any],
    times: Mapping[str, Seconds],
    p2p: str = "direction",
) -> Plan:
    """Make the plan of a schedule; ranks and microbatches must be given.

    Raises InputError when they are not, or the schedule does not have an option.
    """
    if name == "from_csv":
        raise InputError(
            "from_csv reads an order from a file; give the file's name, "
            "such as traincast schedule order.csv"
        )
    some = _typed(name, options)
    given = some if asked.chunks is None else {"chunks": asked.chunks, **some}
    ranks, microbatches = asked.ranks, asked.microbatches
    if ranks is None or microbatches is None:
        missing = [f"--{what}" for what in Asked._fields[:2] if getattr(asked, what) is None]
        raise InputError(
            f"the schedule {name} needs {' and '.join(missing)}, such as --ranks 4 "
            "--microbatches 8; only an order in a file has its own"
        )
    schedules.check(name, ranks, microbatches, **given)
    chunks = schedules.stages_per_rank(name, asked.chunks)
    staged(times, ranks * chunks)
    return plan_of(name, ranks, microbatches, chunks, times, p2p, **some)


def options(texts: Sequence[str]) -> dict[str, Any]:
    """Return the values of ``--option KEY=VALUE``.

    >>> options(["memory=6", "exact=true"])
    {'memory': 6, 'exact': True}
    """
    out: dict[str, Any] = {}
    for text in texts:
        key, value = recipe_file.setting(text, "--option", "group=8")
        if key in out:
            raise InputError(f"--option gives {brief(key)} twice; leave one of them out")
        out[key] = value
    return out


def _typed(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, each of which the schedule must have, with values of their types."""
    elsewhere = {"chunks": "--chunks", "policy": "--p2p"}
    elsewhere |= dict.fromkeys(("F", "I", "W", "p2p"), "--times")
    takes = schedules.options(name)
    able = [key for key in takes if key not in elsewhere]
    function = schedules.load(name)
    with said(name) if is_path(name) else nullcontext():
        hints = get_type_hints(function)
    for key, value in options.items():
        if key in takes and key in elsewhere:
            raise InputError(f"--option {key} is given by {elsewhere[key]}")
        if key not in able:
            there = f"it has {', '.join(able) or 'none'}"
            raise InputError(f"the schedule {name} has no option {brief(key)}; {there}")
        if key in hints:  # a schedule from outside of the package may have none
            _one(key, value, get_args(hints[key]) or (hints[key],))
    return dict(options)


def _one(key: str, value: object, types: tuple[type, ...]) -> None:
    """Raise InputError for a value of another type; a whole number is a number, true is not."""
    if isinstance(types[0], str):  # the words of a Literal
        if value not in types:
            words = " or ".join(map(str, types))
            raise InputError(f"--option {key} = {brief(value)} must be {words}")
        return
    kind = types[0]
    fits = type(value) in (types if kind is not float else (float, int))
    if not fits or (isinstance(value, float) and not math.isfinite(value)):
        raise InputError(f"--option {key} = {brief(value)} must be {_TYPES[kind]}")
