"""The command ``traincast analyze``: what a recorded run did, and why it took so long."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincast.commands.parts.options import AnalysisNames, Json, Names, Ranks, Step, Window, target

EXAMPLE = "Example: traincast analyze traces/rank0.json.gz traces/rank1.json.gz --step 3"


def command(
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="Recorded files, one per rank, or folders of such files.", metavar="TRACE..."
        ),
    ],
    step: Step = None,
    ranks: Ranks = None,
    window: Window = None,
    to: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="FORMAT PATH",
            help="Write the timeline: perfetto FILE.json.gz, or chakra FOLDER (a file per rank).",
        ),
    ] = None,
    annotation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what was launched inside this annotation."),
    ] = None,
    instance: Annotated[
        int, typer.Option(metavar="N", min=0, help="Which annotation of that name, from 0.")
    ] = 0,
    names: Names = None,
    plot: Annotated[Path | None, target("FILE", "Draw the timeline and critical path.")] = None,
    out: Annotated[
        Path | None, target("DIR", "Write report.html, a page to explore, here.")
    ] = None,
    analysis: AnalysisNames = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all rows of all tables.")] = False,
    json: Json = False,
) -> None:
    """Say what a recorded run did and why it took so long: path, idle time, overlap, stragglers."""
    from traces import reading
    from traces.recording import Selection
    from traincast.commands.parts import (
        analyses,
        output,
        recording_tables,
        recordings,
        tables,
        values,
    )
    from traincast.commands.parts.progress import progress

    some_ranks = None if ranks is None else values.ranks(ranks, 1 << 20)
    some_time = None if window is None else values.window(window)
    for trace in traces:
        output.apart({"--plot": plot, "--to": to[1] if to else None}, trace)
    if to:
        recordings.writer(to[0])
        if to[0] != "chakra":
            output.replaceable(to[1])
    if plot:
        output.picture(plot)
    if out:
        output.replaceable(output.writable(out) / recordings.PAGE)
    asked = analyses.chosen(analysis)
    selection = Selection(step, some_ranks, some_time, annotation, instance, names)
    with progress() as report:
        recording = reading.read(traces, selection, report)
        report("analysis", 0, 0)
        analysed = analyses.run(asked, recording)
        found = recordings.figures(recording)
        if to:
            recordings.convert(recording, *to)
        if plot:
            recordings.draw(recording, traces, plot)
        page = recordings.write_page(out, traces, recording, found) if out else None
    if json:
        more = {"analyses": analyses.plain(analysed)} if asked else {}
        output.print_json({**found, **more})
        return
    recording_tables.show_figures(found, everything)
    most = len(recording.timeline.graph) if everything else analyses.ROWS
    analyses.show(asked, analysed, recording.timeline.graph, most)
    tables.show_files(filter(None, (to[1] if to else None, plot, page)))
