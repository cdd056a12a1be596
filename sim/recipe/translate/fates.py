"""What becomes of each argument of another program: the tables ``*_fates.toml``.

An argument is translated; or it changes no step; or it changes how a part of the step runs, and is
reported as left out; or it describes another job and is refused; or it is unknown.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol

PROGRAMS = {"megatron": "Megatron-LM", "torchtitan": "torchtitan"}


class File(Protocol):
    """The arguments of another program that were read from a file."""

    @property
    def given(self) -> Mapping[str, Any]:
        """Values by argument."""

    def refuse(self, what: str) -> NoReturn:
        """Raise InputError about the file."""


@dataclass(frozen=True)
class Fates:
    """The table of one program; of arguments that are not translated also why, or their subject."""

    program: str
    translated: frozenset[str]
    harmless: Mapping[str, str]
    left_out: Mapping[str, str]
    refused: Mapping[str, str]
    unless: Mapping[str, list[Any]]  # values with which a refused argument changes nothing
    renamed: Mapping[str, str]

    def known(self) -> list[str]:
        """Return all names, sorted."""
        others = (self.harmless, self.left_out, self.refused, self.renamed)
        return sorted(self.translated.union(*others))


@dataclass(frozen=True)
class Ignored:
    """The parts of a file that a recipe ignores."""

    harmless: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # arguments, and what each is about
    unread: list[str] = field(default_factory=list)  # parts of a script
    unknown: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return any((self.harmless, self.left_out, self.unread, self.unknown))


@cache
def fates(program: str) -> Fates:
    """Return the table of ``megatron`` or ``torchtitan``."""
    text = Path(__file__).with_name(f"{program}_fates.toml").read_text(encoding="utf-8")
    table = tomllib.loads(text)
    return Fates(
        PROGRAMS[program],
        frozenset(table["translated"]),
        harmless=_by_name(table["harmless"]),
        left_out=_by_name(table["left_out"]),
        refused=_by_name(table["refused"]),
        unless=table["unless"],
        renamed=table.get("renamed", {}),
    )


def _by_name(groups: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: about for about, names in groups.items() for name in names}


def judge(table: Fates, file: File, *, allow_unknown: bool) -> Ignored:
    """Return what of a file is ignored.

    Raises InputError for arguments that describe another job, and for unknown ones unless they are
    allowed.
    """
    known = frozenset(table.known())
    unknown = [name for name in file.given if name not in known]
    if unknown and not allow_unknown:
        file.refuse(_unknown(table, unknown))
    for name in sorted(table.refused.keys() & file.given.keys()):
        if not _usual(file.given[name], table.unless.get(name, [])):
            file.refuse(
                f"{name} describes another job ({table.refused[name]}), which is not translated; "
                "leave it out, or write the recipe by hand"
            )
    left_out = {name: table.left_out[name] for name in file.given if name in table.left_out}
    harmless = table.harmless.keys() | table.refused.keys()
    return Ignored([name for name in file.given if name in harmless], left_out, [], unknown)


def _usual(value: Any, usual: Iterable[Any]) -> bool:
    """Return whether every value given (for a flag, every word after it) is one of these values."""
    words = value if isinstance(value, tuple) else (value,)
    return bool(words) and all(any(_same(word, one) for one in usual) for word in words)


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)


def _unknown(table: Fates, names: list[str]) -> str:
    near = difflib.get_close_matches(names[0], table.known(), 1, 0.7)
    meant = f"; did you mean {near[0]}?" if near else ";"
    others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return (
        f"{table.program} has no {names[0]}{others}{meant} "
        "--allow-unknown ignores unknown arguments"
    )
