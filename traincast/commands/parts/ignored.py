"""Says which arguments of the files that a recipe names are ignored; none is passed over."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sim.recipe import recipe_file

FEW = 4
"""Up to so many harmless arguments are named; of more only their number is printed."""


def warn(recipe: Path, overrides: Mapping[str, object]) -> Mapping[str, Any]:
    """Print on standard error what was ignored, and return it for ``--json``; empty if nothing was.

    Raises InputError when the recipe cannot be read.
    """
    found = recipe_file.ignored(recipe, overrides)
    for file, what in found.items():
        _say("ignored of", file, _counted(what.harmless))
        _say("not simulated of", file, _grouped(what.left_out))
        _say("not read of", file, what.unread)
        _say("not known, ignored of", file, what.unknown)
    ignored = {file: [*of.harmless, *of.unread, *of.unknown] for file, of in found.items()}
    left_out = {file: of.left_out for file, of in found.items() if of.left_out}
    out: dict[str, Any] = {"ignored": {file: names for file, names in ignored.items() if names}}
    out["not_simulated"] = left_out
    return {key: value for key, value in out.items() if value}


def _say(how: str, file: str, what: Iterable[str]) -> None:
    if said := ", ".join(map(_shown, what)):
        print(f"{how} {file}: {said}", file=sys.stderr)


def _counted(names: list[str]) -> list[str]:
    if len(names) <= FEW:
        return names
    return [f"{len(names)} arguments that change no step (--json names them)"]


def _grouped(left_out: Mapping[str, str]) -> list[str]:
    """Return the arguments, grouped by what they are about.

    >>> _grouped({"--a": "norms", "--b": "a router", "--c": "norms"})
    ['norms (--a --c)', 'a router (--b)']
    """
    names: dict[str, list[str]] = {}
    for name, about in left_out.items():
        names.setdefault(about, []).append(name)
    return [f"{about} ({' '.join(some)})" for about, some in names.items()]


def _shown(word: str) -> str:
    """Return a word without what a terminal would obey, cut where it is long.

    >>> _shown("--lr"), _shown("\\x1b[1m")
    ('--lr', '\\\\x1b[1m')
    """
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in word)
    return plain if len(plain) <= 160 else f"{plain[:157]}..."
