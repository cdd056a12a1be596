"""Arguments that several commands take: a recipe, values that replace its own, a folder, JSON."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedules.input_error import InputError

if TYPE_CHECKING:
    from sim.recipe.recipe import Recipe


MOST_JOBS = 1024


def path(text: str) -> Path:
    """Return a path; refuse an empty one."""
    if not text:
        raise typer.BadParameter("an empty path names no file; give a name, or leave it out")
    return Path(text)


def target(metavar: str, about: str) -> Any:
    """Make an option that names a file or folder to write."""
    return typer.Option(metavar=metavar, parser=path, help=about)


RecipeFile = Annotated[
    Path,
    typer.Argument(
        parser=path,
        help="Recipe (TOML), or what becomes one: a Megatron-LM script or YAML, a torchtitan "
        "configuration, a config.json, the name of a preset.",
        metavar="RECIPE",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Replace a value of the recipe; may be given several times. KEY= removes it.",
    ),
]
Topology = Annotated[
    str | None, typer.Option(metavar="NAME", help="The cluster's topology, a name or a file.")
]
Gpus = Annotated[int | None, typer.Option(metavar="N", help="The cluster's GPUs.")]
AllowUnknown = Annotated[
    bool,
    typer.Option(
        "--allow-unknown",
        help="Ignore unknown arguments of Megatron-LM or torchtitan in the files a recipe names.",
    ),
]
AnalysisNames = Annotated[
    list[str] | None,
    typer.Option(
        "--analysis",
        metavar="NAME",
        help="Show an analysis (see list analyses, or ./file.py) too; may be given several times.",
    ),
]
Step = Annotated[
    int | None, typer.Option(metavar="N", help="Only this training step, as the files number it.")
]
Ranks = Annotated[str | None, typer.Option(metavar="0,4-7", help="Only these ranks.")]
Window = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Only these seconds of the recording.")
]
Names = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Your rules for kernel names, like traces/kernel_names.toml."
    ),
]
Jobs = Annotated[int, typer.Option(metavar="N", help="Processes; -1 is one for each CPU.")]
Backend = Annotated[
    str | None,
    typer.Option(metavar="ray|dask", help="Simulate on a cluster of Ray or Dask (see docs)."),
]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Its address; without it one starts on this machine."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def processes(jobs: int) -> int:
    """Return a number of ``--jobs``; refuse one of which no processes can be started."""
    if not (jobs == -1 or 1 <= jobs <= MOST_JOBS):
        raise InputError(
            f"--jobs takes a number of processes from 1 to {MOST_JOBS:,}, or -1, not {jobs}"
        )
    return jobs


def overrides(
    settings: list[str] | None,
    allow_unknown: bool,
    topology: str | None = None,
    gpus: int | None = None,
) -> dict[str, object]:
    """Return what replaces values of the recipe: those of ``--set``, and of options of their own.

    A topology's file stands where the command runs, not where the recipe is.
    """
    from sim.recipe import recipe_file

    found = dict(recipe_file.setting(text) for text in settings or ())
    if topology is not None:
        is_file = "/" in topology or topology.endswith(".toml")
        found["cluster.topology"] = str(Path(topology).absolute()) if is_file else topology
    if gpus is not None:
        found["cluster.gpus"] = gpus
    return {**found, "allow_unknown": True} if allow_unknown else found


def load(path: Path, over: Mapping[str, object] | None = None) -> Recipe:
    """Load the recipe, with some values replaced."""
    from sim.recipe import recipe_file

    return recipe_file.load(path, over)
