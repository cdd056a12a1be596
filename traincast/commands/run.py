"""The command ``traincast run``: one training step, simulated."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from traincast.commands.parts.options import (
    AllowUnknown,
    AnalysisNames,
    Gpus,
    Json,
    RecipeFile,
    Settings,
    Topology,
    load,
    overrides,
    target,
)

EXAMPLE = "Example: traincast run recipe.toml --set parallelism.tp=4 --out out"

Written = Annotated[
    str | None, typer.Option(metavar="0,4-7", help="Ranks whose traces are written.")
]
SomeTime = Annotated[
    str | None, typer.Option(metavar="FROM:TO", help="Seconds of the step that are written.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        metavar="EDIT",
        help="Simulate again with an edit, such as 'compute * 0.8 where kind=attention', "
        "'link ib * 2' or 'remove stragglers'; may be given several times.",
    ),
]
Stragglers = Annotated[
    bool,
    typer.Option(
        "--stragglers",
        help="Say what slow ranks, links and pauses cost, and which ranks cause it; "
        "with --out also as stragglers.png.",
    ),
]
Explain = Annotated[
    bool,
    typer.Option(
        "--explain",
        help="Say what each effect of load on the GPU adds to the step, from boost clock on; "
        "with --out also as explain.png.",
    ),
]


def command(
    recipe: RecipeFile,
    topology: Topology = None,
    gpus: Gpus = None,
    set_: Settings = None,
    allow_unknown: AllowUnknown = False,
    out: Annotated[
        Path | None, target("DIR", "Write summary, page, trace, pictures and complete recipe here.")
    ] = None,
    json: Json = False,
    ranks: Written = None,
    window: SomeTime = None,
    what_if: WhatIf = None,
    stragglers: Stragglers = False,
    explain: Explain = False,
    analysis: AnalysisNames = None,
) -> None:
    """Simulate one training step of a recipe."""
    from traincast.commands.parts import ignored, output, values

    for text in what_if or ():
        from sim.whatif import parse

        parse(text)
    some_time = None if window is None else values.window(window)
    over = overrides(set_, allow_unknown, topology, gpus)
    job = load(recipe, over)
    left_out = ignored.warn(recipe, over)
    some_ranks = None if ranks is None else values.ranks(ranks, job.cluster.gpus)
    from traincast.commands.parts import analyses

    chosen = analyses.chosen(analysis)
    from sim.runs import verdict
    from sim.runs.run import run as simulate
    from traincast.commands.parts import questions, tables
    from traincast.commands.parts.progress import progress

    also = questions.asked(what_if or (), stragglers, explain)
    if out:
        from traces.own import folder

        folder.check(out)
        for one in also:
            if one.picture:
                output.replaceable(out / one.picture)
    more: dict[str, Any] = {}
    with progress() as report:
        result = simulate(
            job,
            report=report,
            prepared=lambda graph: values.simulated(some_ranks, graph.ranks().tolist()),
        )
        for one in also:
            report(one.about, 0, 0)
            more[one.key] = one.figures(result, report)
        report("analysis", 0, 0)
        analysed = analyses.run(chosen, result)
        if out:
            files = folder.write(result, out, some_ranks, some_time, report)
            drawn = questions.draw(also, more, out, str(job.model.name))
        report("summary", 0, 0)
        summary = result.summary
    memory, capacity = summary["memory"], result.cluster.gpu.memory
    if json:
        more |= {"analyses": analyses.plain(analysed)} if chosen else {}
        output.print_json({**summary, **left_out, **more})
        tables.warn_overflow(memory, capacity)
        return
    tables.say(verdict.job(job, result.cluster), "bold")
    tables.say(verdict.answer(summary, capacity), "bold")
    tables.show_summary(summary, capacity)
    for one in also:
        one.show(summary, more[one.key])
    analyses.show(chosen, analysed, result.timeline.graph, analyses.ROWS)
    if out:
        tables.show_files([*files.paths, *drawn])
        tables.show_traced(files.traced, len(result.timeline.graph))
