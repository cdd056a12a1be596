"""The command ``traincast search``: the layouts of a job that are best, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import (
    Address,
    AllowUnknown,
    Backend,
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
    "Example: traincast search recipe.toml --gpus 64 --budget 40"
    " --fix parallelism.cp=1 --fix training.recompute=none,full --out found"
)


Numbers = Annotated[
    str | None,
    typer.Option(metavar="N1,N2", help="GPUs; of several the best; default: the recipe's."),
]
Largest = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Instead, the largest micro_batch, or context, with which a layout fits.",
    ),
]
Fix = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=V1,V2",
        help="Try only these values of a key; may be given several times. KEY= leaves it out.",
    ),
]
Folder = Annotated[
    Path | None,
    target("DIR", "Write page, pictures and search.parquet, from which a search goes on, here."),
]


def command(
    recipe: RecipeFile,
    gpus: Numbers = None,
    objective: Annotated[
        str,
        typer.Option(metavar="NAME", help="step_time, tokens_per_dollar or energy."),
    ] = "step_time",
    deadline: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Find the fewest --gpus whose step takes no longer."),
    ] = None,
    largest: Largest = None,
    budget: Annotated[int, typer.Option(metavar="N", help="Most steps to simulate.")] = 200,
    fix: Fix = None,
    set_: Settings = None,
    topology: Topology = None,
    allow_unknown: AllowUnknown = False,
    out: Folder = None,
    plot: Annotated[Path | None, target("FILE", "Draw step time against memory.")] = None,
    jobs: Jobs = -1,
    backend: Backend = None,
    address: Address = None,
    json: Json = False,
) -> None:
    """Find the layouts that are fastest or cheapest; say what they cost and why."""
    from sim.runs import workers
    from sim.search import search as searches
    from traincast.commands.parts import decision, found, ignored, output, tables, values
    from traincast.commands.parts.progress import progress

    processes(jobs)
    if largest is not None:
        given = {"--deadline": deadline, "--out": out, "--plot": plot, "--backend": backend}
        if other := next((name for name, value in given.items() if value is not None), None):
            raise InputError(f"--largest simulates nothing; leave {other} out")
    if out:
        output.writable(out)
        for name in (decision.PAGE, decision.FRONTIER, decision.WHY):
            output.replaceable(out / name)
    if plot:
        output.picture(plot)
    common = overrides(set_, allow_unknown, topology)
    ignored.warn(recipe, common)
    fixed = values.vary(fix or (), "--fix")
    if largest is not None:
        most = found.largest(recipe, largest, found.numbers(gpus), fixed, common)
        output.print_json(most._asdict()) if json else tables.say(found.fitting(most))
        return
    with workers.on(backend, address), progress() as report:
        answer = searches.search(
            recipe,
            found.numbers(gpus),
            objective,
            budget,
            fixed,
            common,
            found.seconds(deadline),
            out,
            jobs,
            report,
        )
        files = decision.write(answer, recipe, common, out, report) if out else []
    if plot:
        output.draw(found.draw(answer), plot)
    if json:
        output.print_json(found.figures(answer))
    else:
        found.show(answer)
        files += [out / searches.FILE] if out else []
        tables.show_files([*files, *([plot] if plot else [])])
