"""The command ``traincast calibrate``: a GPU's constants, fitted to measurements."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import Json

EXAMPLE = "Example: traincast calibrate h100 --write"


def command(
    gpu: Annotated[str, typer.Argument(help="Kind of GPU, such as a100 or h100.")],
    write: Annotated[
        bool, typer.Option("--write", help="Put the constants into the topology file.")
    ] = False,
    recorded: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Fit to what traincast record all (its result.json) or record sweep measured; "
            "GPU may then be any topology.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Fit a GPU's constants to measured kernels and collectives, never to step times."""
    from traincast.commands.parts import output

    if recorded and write:
        raise InputError(
            "--write takes public tables only; copy what --recorded fits into your topology file"
        )
    if recorded:
        from traces.calibration import from_recorder as calibrate_recorded

        fitted = calibrate_recorded.calibrate(gpu, recorded)
    else:
        from traces.calibration import calibrate as calibration

        fitted = calibration.calibrate(gpu)
    file = fitted.write() if write else None
    if json:
        output.print_json(_calibration(fitted))
        return
    print(fitted.toml())
    for error in fitted.errors:
        print(f"# {error}")
    for line in _under_load(fitted.load) if fitted.load else ():
        print(f"# {line}")
    if file:
        print(f"# wrote {file}")


def _under_load(load: Any) -> Iterator[str]:
    """Yield a table of what was measured under load beside what the topology has."""
    heads = f"{'measured':>20} {'topology':>10} {'off by':>8}  range where assumed"
    yield f"{'under load':50} {heads}"
    for one in load.constants:
        error = f" +- {one.error:.2g}" if one.error is not None else ""
        known = "" if one.topology is None else f"{one.topology:.4g}"
        off = "" if one.difference is None else f"{100 * one.difference:+.1f} %"
        band = f"  {one.assumed[0]:g} to {one.assumed[1]:g}" if one.assumed else ""
        yield f"{one.name:50} {f'{one.measured:.4g}{error}':>20} {known:>10} {off:>8}{band}"
    yield from (f"not measured: {why}" for why in load.missing)


def _calibration(fitted: Any) -> dict[str, Any]:
    return {
        "gpu": fitted.gpu,
        "constants": fitted.constants,
        "collectives": fitted.collectives,
        "errors": [error._asdict() for error in fitted.errors],
        "under_load": [
            {**one._asdict(), "difference": one.difference} for one in fitted.load.constants
        ]
        if fitted.load
        else [],
        "not_measured": fitted.load.missing if fitted.load else [],
    }
