"""What several commands take: a recipe, values over it, a folder, JSON instead of tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe


def path(text: str) -> Path:
    """A path that names something."""
    if not text:
        raise typer.BadParameter("an empty path names no file; give a name, or leave it out")
    return Path(text)


def target(metavar: str, about: str) -> Any:
    """An option that names a file or folder to write."""
    return typer.Option(metavar=metavar, parser=path, help=about)


RecipeFile = Annotated[Path, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Put a value over the recipe's; may be given several times. KEY= leaves it out.",
    ),
]
AllowUnknown = Annotated[
    bool,
    typer.Option(
        "--allow-unknown",
        help="Ignore arguments of Megatron-LM or torchtitan that a recipe names and nobody knows.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def overrides(settings: list[str] | None, allow_unknown: bool) -> dict[str, object]:
    """What is put over the recipe: the values of ``--set``, and ``--allow-unknown``."""
    from sim.recipe import load as config

    found = dict(config.setting(text) for text in settings or ())
    return {**found, "allow_unknown": True} if allow_unknown else found


def load(path: Path, over: Mapping[str, object] | None = None) -> Recipe:
    """The recipe with values over it."""
    from sim.recipe import load as config

    return config.load(path, over)
