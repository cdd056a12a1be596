"""The command ``traincast run``: one training step, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.commands.parts.options import (
    AllowUnknown,
    AnalysisNames,
    Json,
    RecipeFile,
    Settings,
    load,
    overrides,
    target,
)

EXAMPLE = "Example: traincast run recipe.toml --set parallelism.tp=4 --out out"


def command(
    recipe: RecipeFile,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    out: Annotated[
        Path | None, target("DIR", "Write summary, page, trace, pictures and complete recipe here.")
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
            help="Say what slow ranks, links and pauses cost, and which ranks cause it; "
            "with --out also as stragglers.png.",
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Say what each effect of load on the GPU adds to the step, from boost clock on; "
            "with --out also as explain.png.",
        ),
    ] = False,
    analysis: AnalysisNames = None,
) -> None:
    """Simulate one training step of a recipe."""
    from traincast.commands.parts import ignored, output, values

    if what_if:
        from sim.whatif import parse

        for text in what_if:
            parse(text)

    some_time = None if window is None else values.window(window)
    over = overrides(set_, allow_unknown)
    job = load(recipe, over)
    left_out = ignored.warn(recipe, over)
    some_ranks = None if ranks is None else values.ranks(ranks, job.cluster.gpus)
    from traincast.commands.parts import analyses

    asked = analyses.chosen(analysis)
    from sim.runs.explain import explain as explained
    from sim.runs.run import run as simulate
    from traincast.commands.parts import blame, explaining, tables, what_ifs
    from traincast.commands.parts.progress import progress

    if out:
        from traces.own import folder

        folder.check(out)
        if stragglers:
            output.replaceable(out / blame.PICTURE)
        if explain:
            output.replaceable(out / explaining.PICTURE)
    more: dict[str, Any] = {}
    with progress() as report:
        result = simulate(
            job,
            report=report,
            prepared=lambda graph: values.simulated(some_ranks, graph.ranks().tolist()),
        )
        if what_if:
            report("what if", 0, 0)
            more["what_if"] = what_ifs.figures(result, what_if)
        if stragglers:
            more["stragglers"] = blame.figures(result, report)
        if explain:
            more["explain"] = explaining.figures(explained(job, report))
        report("analysis", 0, 0)
        analysed = analyses.run(asked, result)
        if out:
            files = folder.write(result, out, some_ranks, some_time, report)
            drawn = (
                [blame.draw(more["stragglers"], out, str(result.recipe.model.name))]
                if stragglers
                else []
            )
            if explain:
                path = out / explaining.PICTURE
                drawn.append(explaining.draw(more["explain"], path, str(job.model.name)))
        report("summary", 0, 0)
        summary = result.summary
    memory, capacity = summary["memory"], result.cluster.gpu.memory
    if json:
        more |= {"analyses": analyses.plain(analysed)} if asked else {}
        output.print_json({**summary, **left_out, **more})
        tables.warn_overflow(memory, capacity)
        return
    tables.show_summary(summary, capacity)
    if what_if:
        what_ifs.show(summary["step_time_s"], more["what_if"])
    if stragglers:
        blame.show(more["stragglers"])
    if explain:
        explaining.show(more["explain"])
    analyses.show(asked, analysed, result.timeline.graph, analyses.ROWS)
    if out:
        tables.show_files([*files.paths, *drawn])
        tables.show_traced(files.traced, len(result.timeline.graph))
