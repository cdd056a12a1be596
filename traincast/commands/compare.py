"""The command ``traincast compare``: a recipe in several ways, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import (
    AllowUnknown,
    Gpus,
    Json,
    RecipeFile,
    Settings,
    Topology,
    load,
    overrides,
    target,
)

EXAMPLE = "Example: traincast compare recipe.toml --schedules all --out out"


def command(
    recipe: RecipeFile,
    names: Annotated[
        str | None,
        typer.Option(
            "--schedules", metavar="A,B", help="Names (see list schedules), ./files.py, or all."
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Values of a key; repeat it for all combinations."),
    ] = None,
    topology: Topology = None,
    gpus: Gpus = None,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    out: Annotated[
        Path | None,
        target("DIR", "Write compare.html, compare.png, frontier.png and why.png here."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a recipe in several ways: a table, timelines on one axis, time against memory."""
    from sim.runs import compare as ways
    from traincast.commands.parts import comparison, ignored, output, tables, values
    from traincast.commands.parts.progress import progress

    common = overrides(set_, allow_unknown, topology, gpus)
    base = load(recipe, common)
    if (names is None) == (not vary):
        raise InputError(
            "compare takes either --schedules A,B or --vary KEY=V1,V2; "
            "--vary schedule.name=a,b goes with further --vary of other keys"
        )
    if out:
        output.writable(out)
        for name in (comparison.PAGE, *comparison.PICTURES):
            output.replaceable(out / name)
    chosen = (
        ways.by_schedule(names.split(","), base, common)
        if names is not None
        else ways.by_value(values.vary(vary or []), common)
    )
    ignored.warn(recipe, common)
    with progress() as report:
        found = ways.compare(recipe, chosen, report)
    files = comparison.draw(found, out) if out else []
    if json:
        output.print_json(comparison.summaries(found))
    else:
        comparison.show(found)
        comparison.note(ways.spread(chosen, base) if names is not None else [])
        tables.show_files(files)
    if not any(way.result for way in found):
        raise typer.Exit(2)
