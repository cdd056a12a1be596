"""The command ``traincast list``: names of what comes with this package."""

from __future__ import annotations

from typing import Annotated

import typer

from traincast.commands.parts.options import Json

EXAMPLE = "Example: traincast list models"


def command(
    kind: Annotated[
        str, typer.Argument(help="models, layers, topologies, schedules, strategies or analyses.")
    ],
    json: Json = False,
) -> None:
    """List what comes along: models, layers, topologies, schedules, strategies or analyses."""
    from traincast.commands.parts import catalog, output

    entries = catalog.entries(kind)
    if json:
        output.print_json(entries)
        return
    from traincast.commands.parts import tables

    tables.show_list(*catalog.rows(kind, entries))
    if said := catalog.uncalibrated(entries):
        tables.say(said)
