"""The command ``traincast sweep``: many configurations, into a Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincast.commands.parts.options import (
    Address,
    AllowUnknown,
    Backend,
    Gpus,
    Jobs,
    Json,
    RecipeFile,
    Settings,
    Topology,
    overrides,
    processes,
    target,
)

EXAMPLE = (
    "Example: traincast sweep recipe.toml --vary perturbations[0].compute=1.0,1.1,1.3"
    " --vary schedule.name=one_f_one_b,zb_1p --out sweep.parquet --plot sweep.png"
)


def command(
    recipe: RecipeFile,
    vary: Annotated[
        list[str],
        typer.Option(metavar="KEY=V1,V2", help="Values of a key; repeat it for all combinations."),
    ],
    out: Annotated[Path, target("FILE", "Parquet file; rows that it already has are kept.")],
    topology: Topology = None,
    gpus: Gpus = None,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    jobs: Jobs = -1,
    backend: Backend = None,
    address: Address = None,
    plot: Annotated[Path | None, target("FILE", "Draw step time against a key.")] = None,
    x: Annotated[
        str | None,
        typer.Option(
            "--x", metavar="KEY", help="Key for --plot; unless given, the first with numbers."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate many configurations into a Parquet file; run it again to resume where it stopped."""
    from sim.runs import sweep as sweeps
    from sim.runs import workers
    from traincast.commands.parts import ignored, output, sweeping, tables, values
    from traincast.commands.parts.progress import progress

    chosen = values.vary(vary)
    along = sweeping.axis(chosen, x) if plot or x else ""
    processes(jobs)
    output.replaceable(out)
    if plot:
        output.picture(plot)
    output.apart({"--out": out, "--plot": plot}, recipe)
    common = overrides(set_, allow_unknown, topology, gpus)
    ignored.warn(recipe, common)
    with workers.on(backend, address), progress() as report:
        rows = sweeps.sweep(recipe, chosen, out, common, jobs, report)
    if plot:
        output.draw(sweeping.draw(rows, [*chosen], along), plot)
    if json:
        output.print_json(rows)
    else:
        sweeping.show(rows, [*chosen])
        tables.show_files(filter(None, (out, plot)))
    if all(row["refused"] for row in rows):
        raise typer.Exit(2)
