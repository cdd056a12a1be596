"""The command ``traincast replay``: a recording simulated again from its operations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincast.commands.parts.options import Json, Names, Ranks, Step, Window, target

EXAMPLE = 'Example: traincast replay traces/ --what-if "remove stragglers"'


def command(
    traces: Annotated[
        list[Path], typer.Argument(help="Recorded traces: files, or a folder.", metavar="TRACE...")
    ],
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="How the host spends time between ops: anchored (as recorded), modelled (by its "
            "gaps and waits, or its usual ones), or none (calls in the same order take no time; "
            "no faster host does better). By default the first that the format has.",
        ),
    ] = None,
    step: Step = None,
    ranks: Ranks = None,
    window: Window = None,
    names: Names = None,
    out: Annotated[Path | None, target("FILE", "Write the replayed timeline here.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EDIT",
            help="'compute * 0.8 where kind=gemm', 'launch * 0.5' or 'remove stragglers'; may be "
            "given several times. The host then keeps its gaps, not its times (modelled). For "
            "'remove stragglers' it takes the gaps of other steps, or none.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate a recorded run again from its operations, to check that or to ask what if."""
    from traces import reading
    from traces.own import perfetto
    from traces.recording import Selection
    from traces.replay import replays, ways
    from traincast.commands.parts import output, replaying, values
    from traincast.commands.parts.progress import progress

    if out:
        output.replaceable(out)
        for path in traces:
            output.apart({"--out": out}, path)
    some_ranks = None if ranks is None else values.ranks(ranks)
    some_time = None if window is None else values.window(window)
    with progress() as report:
        # the gaps of a step are learnt from the other steps, so these are read too
        read_step = None if hosts == "modelled" and not what_if else step
        selection = Selection(read_step, some_ranks, some_time, names=names)
        recording = reading.read(traces, selection, report)
        if what_if and hosts is None:
            hosts = ways.usual(recording, "; ".join(what_if))
        found = replays.replay(recording, hosts, report)
        edited = {
            edit: replays.replay(recording, hosts, report, edit)
            for edit in replays.together(what_if or ())
        }
        if step != read_step and step is not None:
            found = replays.only(found, step)
        if out:
            with output.replacing(out) as temporary:
                perfetto.write(
                    found.timeline, temporary, ranks=found.timeline.graph.ranks().tolist()
                )
    result = replaying.figures(found)
    if edited:
        result["what_if"] = replaying.edits(found, edited)
    if json:
        output.print_json(result)
        return
    replaying.show(result)
    if out:
        from traincast.commands.parts import tables

        tables.show_files([out])
