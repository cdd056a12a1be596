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


Memory = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="Give each way the largest micro-batch (same global batch) that fits, such as "
        "80GB, or else the least recomputation.",
    ),
]
Folder = Annotated[
    Path | None,
    target("DIR", "Write compare.html, compare.png, frontier.png and why.png here."),
]


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
    memory: Memory = None,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    out: Folder = None,
    json: Json = False,
) -> None:
    """Run a recipe in several ways: a table, timelines on one axis, time against memory.

    Each schedule sends messages as its own runtime does (parallelism.p2p = auto), and its stages
    are balanced by simulated runtime unless the recipe gives layers_per_stage for so many.
    """
    from sim.runs import compare as ways
    from sim.runs import fair
    from traincast.commands.parts import comparison, fairness, ignored, output, tables, values
    from traincast.commands.parts.progress import progress

    common = overrides(set_, allow_unknown, topology, gpus)
    base = load(recipe, common)
    if (names is None) == (not vary):
        raise InputError(
            "compare takes either --schedules A,B or --vary KEY=V1,V2; "
            "--vary schedule.name=a,b goes with further --vary of other keys"
        )
    limit = fairness.size(memory) if memory is not None else None
    varied = values.vary(vary or [])
    if limit and {fair.MICRO_BATCH, fair.RECOMPUTE} & varied.keys():
        raise InputError("--memory chooses micro_batch and recompute; leave them out of --vary")
    if out:
        output.writable(out)
        for name in (comparison.PAGE, *comparison.PICTURES):
            output.replaceable(out / name)
    chosen = (
        ways.by_schedule(names.split(","), base, common)
        if names is not None
        else ways.by_value(varied, common)
    )
    kept = fair.kept_stages(recipe, common, base)

    def prepare(way: ways.Overrides) -> ways.Overrides:
        return fair.balanced(recipe, way, kept) if names is not None else way

    ignored.warn(recipe, common)
    with progress() as report:
        fits = fair.in_memory(recipe, chosen, limit, prepare, report) if limit else {}
        fitted = {name: prepare(fits[name].way if limit else way) for name, way in chosen.items()}
        refused = {name: fit.refused for name, fit in fits.items() if fit.refused}
        found = ways.compare(recipe, fitted, report, refused)
    files = comparison.draw(found, out) if out else []
    if json:
        output.print_json(fairness.with_chosen(comparison.summaries(found), fits))
    else:
        comparison.show(found)
        if names is not None:
            fairness.show_messages(found)
            fairness.show_balanced(found, kept)
        if limit:
            fairness.show_fits(fits, limit)
        tables.show_files(files)
    if not any(way.result for way in found):
        raise typer.Exit(2)
