"""The command ``traincast topology``: a machine, described and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincast.commands.parts.options import Json, target

EXAMPLE = "Example: traincast topology dgx_h100 --gpus 64"


def command(
    name: Annotated[str, typer.Argument(help="Name or file of a topology.")],
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs in use; one node unless given.")
    ] = None,
    plot: Annotated[Path | None, target("FILE", "Draw the machine, such as a .png.")] = None,
    json: Json = False,
) -> None:
    """Show a machine: its GPU, links and routes."""
    from sim.machine import cluster
    from traincast.commands.parts import machine, output

    if plot:
        output.picture(plot)
    found = cluster.load(name, gpus or cluster.load(name, 1).gpus_per_node)
    if plot:
        from sim import plots

        output.draw(plots.topology(found), plot)
    if json:
        output.print_json(machine.describe(found))
        return
    from traincast.commands.parts import tables

    tables.show_machine(machine.describe(found))
    tables.show_files([plot] if plot else [])
