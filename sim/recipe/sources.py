"""Which recipe a file means that is none: another program's script or configuration, or a preset.

Only names are looked at, and of TOML the tables: what is inside is read, and refused, where the
recipe's own keys ``megatron``, ``torchtitan`` and ``model.hf`` read it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sim.files import read_text, toml
from sim.recipe import presets
from sim.recipe.translate import NAMES

SUFFIXES = {".sh": "megatron", ".bash": "megatron", ".yaml": "megatron", ".yml": "megatron"}
TITAN = {"job", "metrics", "lr_scheduler", "activation_checkpoint", "experimental", "compile"}
"""Tables that torchtitan's files have and no recipe has."""


def tables(path: Path) -> dict[str, Any]:
    """Return a recipe as it is written, or the recipe that another file or a preset's name means.

    Raises InputError for a file that cannot be read, and for a name that is neither.
    """
    text = str(path)
    if not os.path.lexists(path) and text == path.name and not path.suffix[1:2].isalpha():
        presets.preset(text, "or the file of a recipe, a script or a configuration")
        return {"model": {"preset": text}}
    if path.suffix in SUFFIXES:
        return {SUFFIXES[path.suffix]: path.name}
    if path.suffix == ".json":
        return {"model": {"hf": path.name}}
    found = toml(read_text(path, "the recipe "), path)
    if found.keys() & TITAN and not found.keys() & {"cluster", *NAMES}:
        return {"torchtitan": path.name}
    return found
