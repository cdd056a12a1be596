"""The command ``traincast goodput``: what failures and checkpoints make of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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

EXAMPLE = "Example: traincast goodput recipe.toml --tokens 15T --plot goodput.png"


def command(
    recipe: RecipeFile,
    tokens: Annotated[
        str | None, typer.Option(metavar="15T", help="Tokens to train, with K, M, B or T.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(metavar="N", help="Steps, instead of tokens.")
    ] = None,
    step_time: Annotated[
        str | None,
        typer.Option(metavar="6s", help="Time of a step; unless given, it is simulated."),
    ] = None,
    runs: Annotated[int, typer.Option(metavar="N", help="Runs that are drawn and simulated.")] = 50,
    topology: Topology = None,
    gpus: Gpus = None,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    plot: Annotated[Path | None, target("FILE", "Draw where the time goes.")] = None,
    json: Json = False,
) -> None:
    """Simulate a whole training run with failures, checkpoints and spare nodes.

    Say how long it takes, what it costs, and which interval between checkpoints is best.
    """
    over = overrides(set_, allow_unknown, topology, gpus)
    job = load(recipe, over)
    from sim.goodput.goodput import goodput
    from traincast.commands.parts import ignored, output, tables, training
    from traincast.commands.parts.progress import progress

    if plot:
        output.picture(plot)
        output.apart({"--plot": plot}, recipe)
    left_out = ignored.warn(recipe, over)
    with progress() as report:
        found = goodput(
            job, tokens=tokens, steps=steps, step_time=step_time, runs=runs, report=report
        )
    if plot:
        from sim import plots

        with output.replacing(plot) as temporary:
            plots.save(training.draw(found, str(job.model.name)), temporary)
    if json:
        output.print_json({**found, **left_out})
        return
    training.show(found)
    tables.show_files(filter(None, (plot,)))
