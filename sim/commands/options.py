"""What several commands take: a recipe, values over it, a folder, JSON instead of tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.recipe import Recipe


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
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def load(path: Path, settings: list[str] | None) -> Recipe:
    """The recipe with the values of ``--set`` over it."""
    from sim import config

    return config.load(path, dict(config.setting(text) for text in settings or ()))
