"""Sorts kernels by their names: rules in ``kernel_names.toml``, and those of a user's own file.

The first rule that fits counts. The user's rules come first.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from schedules.input_error import InputError
from sim.files import read_text, toml

COMMUNICATION, COMPUTE = "communication", "compute"
TABLE = "rule"
KEYS = ("name", "kind", "dimension", "project")
_WORD = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = frozenset({"host", "copy"})  # these run on no GPU's cores; events themselves say so


class Sort(NamedTuple):
    """What a kernel does."""

    kind: str
    dimension: str = ""  # whose traffic a communication is; "" unknown


class Rule(NamedTuple):
    """Kernels in whose names a pattern is found, and what they do."""

    pattern: re.Pattern[str]
    sort: Sort


class Rules:
    """Rules, in the order in which they are tried."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)
        self._known: dict[str, Sort] = {}

    def of(self, name: str) -> Sort:
        """Return what a kernel of this name does.

        >>> shipped().of("void deep_ep::internode::combine<__nv_bfloat16>(int4*)")
        Sort(kind='communication', dimension='ep')
        >>> shipped().of("spin_kernel")
        Sort(kind='compute', dimension='')
        """
        found = self._known.get(name)
        if found is None:
            fits = (sort for pattern, sort in self._rules if pattern.search(name))
            self._known[name] = found = next(fits, Sort(COMPUTE))
        return found

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds that there are rules for."""
        return frozenset(sort.kind for _, sort in self._rules)


@cache
def shipped() -> Rules:
    """Return the rules of ``kernel_names.toml``."""
    return Rules([*_shipped()])


def rules(own: Path | None) -> Rules:
    """Return the user's rules, followed by the shipped ones. Raises InputError for a wrong file."""
    if own is None:
        return shipped()
    return Rules([*_rules(read_text(own, "the rules "), str(own)), *_shipped()])


def _shipped() -> Iterator[Rule]:
    text = (files("traces") / "kernel_names.toml").read_text(encoding="utf-8")
    return _rules(text, "kernel_names.toml")


def _rules(text: str, file: str) -> Iterator[Rule]:
    found = toml(text, file)
    rows = found.get(TABLE)
    if (
        [*found] != [TABLE]
        or not isinstance(rows, list)
        or not all(isinstance(r, dict) for r in rows)
    ):
        raise InputError(
            f"{file} holds {', '.join(map(repr, found)) or 'nothing'}; tables [[{TABLE}]] with "
            "name (a pattern) and kind would do"
        )
    return (_rule(row, f"{file}, rule {number}") for number, row in enumerate(found[TABLE], 1))


def _rule(row: Mapping[str, Any], where: str) -> Rule:
    for key, value in row.items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            meant = f"; {near[0]!r} is near" if near else f"; there are {', '.join(KEYS)}"
            raise InputError(f"{where} has the unknown key {key!r}{meant}")
        if not isinstance(value, str):
            raise InputError(f"{where}: {key} = {value!r} is no text")
    for key in ("name", "kind"):
        if not row.get(key):
            raise InputError(f"{where} lacks {key}")
    kind, dimension = row["kind"], row.get("dimension", "")
    for key, value in (("kind", kind), ("dimension", dimension)):
        if value in _TAKEN or not (_WORD.fullmatch(value) or (key == "dimension" and not value)):
            raise InputError(
                f"{where}: {key} = {value!r} is not allowed; give a word of a-z, 0-9 and _, "
                f"but not {' or '.join(sorted(_TAKEN))}"
            )
    if dimension and kind != COMMUNICATION:
        raise InputError(f"{where}: only {COMMUNICATION} has a dimension, and this is {kind}")
    try:
        return Rule(re.compile(row["name"]), Sort(kind, dimension))
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"{where}: {row['name']!r} is no pattern: {error}") from None
