"""Flags and their values from a launch script, a list or a table; typed access."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NoReturn

from schedules.input_error import InputError
from sim.keys.refusals import brief


@dataclass(frozen=True)
class Flags:
    """The flags that a file gives, each with the words after its last occurrence."""

    where: str  # name of the file in errors
    given: Mapping[str, tuple[str, ...]]

    def refuse(self, what: str) -> NoReturn:
        """Raise InputError about this file."""
        raise InputError(f"{self.where}: {what}")

    def on(self, *flags: str) -> bool:
        """Return whether one of these switches is given."""
        return any(flag in self.given for flag in flags)

    def text(self, flag: str) -> str | None:
        """Return the one value of a flag, or None if it is not given.

        Raises InputError for a flag without a value, or a value with a variable that the file does
        not assign.
        """
        words = self.given.get(flag)
        if words is None:
            return None
        if not words:
            self.refuse(f"{flag} takes a value, and none follows")
        if unknown := re.search(r"\$[\w{(][^ ]*|`[^`]*`", words[0]):
            self.refuse(
                f"{flag} = {brief(words[0])}: the file does not assign {unknown.group()}; "
                f"write the number"
            )
        return words[0]

    def choice(self, flag: str, meanings: Mapping[str, str], default: str) -> str:
        """Return what a flag's value means in a recipe.

        Raises InputError for a value without a meaning.
        """
        found = self.text(flag)
        if found is None:
            return default
        if found not in meanings:
            self.refuse(f"{flag} = {found} is not simulated; there are {', '.join(meanings)}")
        return meanings[found]

    def whole(self, flag: str, least: int = 1) -> int | None:
        """Return the whole number of a flag, or None if it is not given.

        Raises InputError for other values, and for numbers below ``least``.
        """
        found = self.text(flag)
        if found is None:
            return None
        if not re.fullmatch(r"[+-]?\d{1,18}", found) or int(found) < least:
            self.refuse(f"{flag} = {brief(found)} must be a whole number from {least}")
        return int(found)

    def number(self, flag: str) -> float | None:
        """Return the number of a flag, or None if it is not given.

        Raises InputError for other values.
        """
        found = self.text(flag)
        try:
            return None if found is None else float(found)
        except ValueError:
            self.refuse(f"{flag} = {brief(found)} must be a number")

    def needed(self, flag: str) -> int:
        """Return the whole number of a flag that every job needs.

        Raises InputError where it is missing.
        """
        found = self.whole(flag)
        if found is None:
            self.refuse(f"{flag} is not given")
        return found

    def one_of(self, *flags: str) -> None:
        """Refuse contradictory flags: at most one of these may be given."""
        both = [flag for flag in flags if flag in self.given]
        if len(both) > 1:
            self.refuse(f"{both[0]} and {both[1]} are both given; leave one of them out")


def of_words(words: Iterable[str], where: str) -> tuple[Flags, list[str]]:
    """Return the flags with the words after them, and the words before the first flag.

    >>> of_words(["--bf16", "--lr", "1e-4", "--seq-length=8"], "a.sh")[0].given
    {'--bf16': (), '--lr': ('1e-4',), '--seq-length': ('8',)}
    """
    given: dict[str, tuple[str, ...]] = {}
    last, stray = "", []
    for word in words:
        if word.startswith("--") and len(word) > 2:
            last, equals, value = word.partition("=")
            given.pop(last, None)
            given[last] = (value,) if equals else ()
        elif last:
            given[last] += (word,)
        else:
            stray.append(word)
    return Flags(where, given), stray


def of_table(table: Mapping[str, object], where: str) -> Flags:
    """Return the flags of a table as in Megatron's test cases; true gives a switch, false none."""
    given: dict[str, tuple[str, ...]] = {}
    for flag, value in table.items():
        if value is not False:
            words = value if isinstance(value, list) else () if value is True else (value,)
            given[flag] = tuple(map(str, words))
    return Flags(where, given)
