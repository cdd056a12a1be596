"""The command ``traincast validate``: predictions against figures of real runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import Json, target

EXAMPLE = (
    "Example: traincast validate korthikanti2022_table4;"
    " traincast validate recorded runs/ --calibrate runs/1F1B.json.gz"
)


def command(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables of published figures (all unless given); or the word recorded, then files "
            "or folders of recorded pipelines and parallel steps (ours unless given).",
            metavar="[SET]...",
        ),
    ] = None,
    out: Annotated[Path | None, target("FILE", "Write the tables as Markdown.")] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="For recorded: fit costs to this run and predict the others; may also be the JSON "
            "of a p2p sweep, and may be given several times.",
        ),
    ] = None,
    freeze: Annotated[
        Path | None, target("FOLDER", "For recorded: write the fitted costs there, and stop.")
    ] = None,
    plot: Annotated[
        Path | None,
        target(
            "FILE",
            "Draw predicted against measured times; for recorded: one run above its prediction.",
        ),
    ] = None,
    explain: Annotated[
        str | None,
        typer.Option(
            metavar="ROW",
            help="Say what each effect of load on the GPU adds to this published step, from boost "
            "clock on, and what is left; with --plot also as a picture.",
        ),
    ] = None,
    assumed: Annotated[
        Path | None,
        target("FILE", "Write as Markdown what step times owe to each assumed value."),
    ] = None,
    draws: Annotated[
        int, typer.Option(metavar="N", help="For recorded: steps with costs drawn at random.")
    ] = 40,
    seed: Annotated[int, typer.Option(metavar="N", help="For recorded: seed of the draws.")] = 0,
    json: Json = False,
) -> None:
    """Predict published figures of real runs, or recorded runs, and say how far off that is."""
    from traincast.commands.parts import errors, explaining, output, recorded_errors, recorded_runs
    from traincast.commands.parts.tables import show_files

    if explain:
        if out or assumed or calibrate or freeze or (tables and tables[0] == "recorded"):
            raise InputError("--explain takes tables of published figures, --plot and --json alone")
        made = errors.explain(explain, tables or (), plot)
        output.print_json(made) if json else explaining.show(made)
        return
    if tables and tables[0] == "recorded":
        if assumed:
            raise InputError("--assumed goes with published step times, not with recorded")
        if freeze:
            show_files(recorded_errors.freeze(calibrate or [], freeze))
            return
        found = recorded_runs.validate(tables[1:], calibrate or [], plot, out, draws, seed)
        output.print_json(found) if json else recorded_runs.show_both(found)
        return
    if calibrate or freeze:
        raise InputError("--calibrate and --freeze go with: traincast validate recorded")
    figures = errors.validate(tables or (), out, plot, assumed)
    output.print_json(figures) if json else errors.show_errors(figures)
