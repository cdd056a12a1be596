"""The command ``traincast check``: whether a job is legal, and what memory it needs."""

from __future__ import annotations

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
)

EXAMPLE = "Example: traincast check recipe.toml --set parallelism.pp=8"
SIMULATED = "the step was simulated, as memory here depends on when transfers and kernels end"


def command(
    recipe: RecipeFile,
    topology: Topology = None,
    gpus: Gpus = None,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    balance: Annotated[
        bool,
        typer.Option("--balance", help="Print the layers_per_stage that suit all ranks best."),
    ] = False,
    json: Json = False,
) -> None:
    """Say whether a recipe is a legal job, and what memory it needs.

    The step is simulated only where memory depends on when transfers and kernels end; it says so.
    """
    over = overrides(set_, allow_unknown, topology, gpus)
    job = load(recipe, over)
    from sim.machine import cluster as clusters
    from sim.runs import verdict
    from sim.runs.check import check as examine
    from traincast.commands.parts import figures, ignored, output, tables
    from traincast.commands.parts.progress import progress

    left_out = ignored.warn(recipe, over)
    if balance:
        from sim.runs.balance import balance as best

        layers = best(job)
        if json:
            output.print_json({"layers_per_stage": layers, **left_out})
        else:
            tables.say(f"layers_per_stage = {layers}")
        return
    with progress() as report:
        found = examine(job, report)
    capacity = found["capacity_bytes"]
    if json:
        output.print_json({**found, **left_out})
        tables.warn_overflow(found["memory"], capacity)
        return
    tables.say(verdict.job(job, clusters.load(job.cluster.topology, job.cluster.gpus)), "bold")
    tables.say(f"legal, {verdict.room(found['memory'], capacity)}", "bold")
    tables.show_memory(found["memory"], capacity)
    if found["simulated"]:
        tables.say(SIMULATED)
    if "pipeline" in found:
        tables.say(f"messages: {figures.MESSAGES[found['pipeline']['p2p']]}")
    tables.show_borrowed(found["machine"])
    for kernels, kind in found.get("priced_as", {}).items():
        tables.say(f"{kernels}: no constants of their own here; priced as {kind} kernels")
    tables.show_host(found["host"])
