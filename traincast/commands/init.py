"""The command ``traincast init``: a recipe to edit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import Json, target

EXAMPLE = "Example: traincast init config.json dgx_h100 --gpus 16 --out recipe.toml"


def command(
    model: Annotated[
        Path,
        typer.Argument(
            help="config.json of a Hugging Face model, or the name of a preset.", metavar="MODEL"
        ),
    ],
    topology: Annotated[
        str, typer.Argument(help="Name or file of a topology.", metavar="TOPOLOGY")
    ],
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs; as many as the model needs unless given.")
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens per sample; 4096 unless given, or what the model takes if that is less.",
        ),
    ] = None,
    out: Annotated[Path | None, target("FILE", "Where to write the recipe.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    json: Json = False,
) -> None:
    """Write a recipe for a model on a machine, for you to edit."""
    from traincast.commands.parts import output, starter

    folder = out.parent if out else Path()
    if out:
        output.replaceable(out)
        if out.exists() and not force:
            raise InputError(f"{out} already exists; name another file, or give --force")
    data = starter.propose(model, topology, gpus, folder, sequence)
    text = starter.text(data, folder)
    if out:
        output.write_text(out, text)
    if json:
        output.print_json(data)
    elif not out:
        print(text)
    else:
        print(f"wrote {out}; next: traincast run {out}")
