"""What of the arguments that a recipe names was not understood: said, never passed over."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sim import config


def warn(recipe: Path) -> Mapping[str, Any]:
    """Say on standard error what was ignored, and give it for ``--json``; empty where nothing was.

    Raises ValueError when the recipe cannot be read.
    """
    found = config.ignored(recipe)
    for file, what in found.items():
        print(f"ignored of {file}: {', '.join(map(_shown, what))}", file=sys.stderr)
    return {"ignored": found} if found else {}


def _shown(word: str) -> str:
    """A word without what a terminal would obey, cut where it is long.

    >>> _shown("--lr"), _shown("\\x1b[1m")
    ('--lr', '\\\\x1b[1m')
    """
    plain = "".join(c if c.isprintable() else repr(c)[1:-1] for c in word)
    return plain if len(plain) <= 80 else f"{plain[:77]}..."
