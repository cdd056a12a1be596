"""``traincast run``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sim.commands.options import Json, RecipeFile, Settings, load, path

EXAMPLE = "Example: traincast run recipe.toml --set parallelism.tp=4 --out out"


def command(
    recipe: RecipeFile,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=path,
            help="Write summary, page, trace, pictures and complete recipe here.",
        ),
    ] = None,
    json: Json = False,
    ranks: Annotated[
        str | None, typer.Option(metavar="0,4-7", help="Ranks whose traces are written.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Seconds of the step that are written.")
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--what-if",
            metavar="EDIT",
            help="Simulate again with an edit, such as 'compute * 0.8 where kind=attention', "
            "'link ib * 2' or 'remove stragglers'; may be given several times.",
        ),
    ] = None,
    stragglers: Annotated[
        bool,
        typer.Option(
            "--stragglers",
            help="Say what slow ranks, links and pauses cost, and whose they are; "
            "with --out also as stragglers.png.",
        ),
    ] = False,
) -> None:
    """Simulate one training step of a recipe."""
    from sim.commands import ignored, output, values

    if what_if:
        from sim.whatif import parse

        for text in what_if:
            parse(text)

    some_time = None if window is None else values.window(window)
    job = load(recipe, set_)
    left_out = ignored.warn(recipe)
    some_ranks = None if ranks is None else values.ranks(ranks, job.cluster.gpus)
    if out:
        from traces import folder

        folder.check(out)
        if stragglers:
            from sim.commands import blame

            output.replaceable(out / blame.PICTURE)
    from sim.commands import tables
    from sim.commands.progress import progress
    from sim.runs import run as simulate

    with progress() as report:
        result = simulate(
            job,
            report=report,
            prepared=lambda graph: values.simulated(some_ranks, graph.ranks().tolist()),
        )
        changed = _what_if(result, what_if, report)
        blamed = _blame(result, report) if stragglers else {}
        files = _write(result, out, some_ranks, some_time, report) if out else None
        drawn = _draw_blame(result, blamed, out) if out and blamed else []
        report("summary", 0, 0)
        summary = result.summary
    memory, capacity = summary["memory"], result.cluster.gpu.memory
    if json:
        more = {**({"what_if": changed} if changed else {}), **blamed}
        output.print_json({**summary, **left_out, **more})
        tables.warn_overflow(memory, capacity)
        return
    tables.show_summary(summary, capacity)
    if changed:
        from sim.commands import what_ifs

        what_ifs.show(summary["step_time_s"], changed)
    if blamed:
        from sim.commands import blame

        blame.show(blamed["stragglers"])
    if files:
        tables.show_files([*files.paths, *drawn])
        tables.show_traced(files.traced, len(result.timeline.graph))


def _write(result: Any, out: Path, ranks: Any, window: Any, report: Any) -> Any:
    from traces.folder import write

    return write(result, out, ranks, window, report)


def _what_if(result: Any, edits: list[str] | None, report: Any) -> list[dict[str, Any]]:
    if not edits:
        return []
    from sim.commands import what_ifs

    report("what if", 0, 0)
    return what_ifs.figures(result, edits)


def _blame(result: Any, report: Any) -> dict[str, Any]:
    from sim.commands import blame

    return {"stragglers": blame.figures(result, report)}


def _draw_blame(result: Any, blamed: dict[str, Any], out: Path) -> list[Path]:
    from sim.commands import blame

    return [blame.draw(blamed["stragglers"], out, str(result.recipe.model.name))]
