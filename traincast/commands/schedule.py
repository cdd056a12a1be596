"""The command ``traincast schedule``: a pipeline schedule by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincast.commands.parts.options import Json, target

EXAMPLE = "Example: traincast schedule one_f_one_b --ranks 4 --microbatches 8"


def command(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A schedule (see list schedules), a ./file.py, or an order in torch's CSV.",
        ),
    ],
    ranks: Annotated[
        int | None, typer.Option(metavar="P", help="Ranks of the pipeline; a file has its own.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="M", help="Microbatches per step; a file has its own.")
    ] = None,
    chunks: Annotated[
        int | None, typer.Option(metavar="V", help="Stages per rank, where a schedule has several.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Another option of the schedule, such as group=8; may be given several times.",
        ),
    ] = None,
    times: Annotated[
        str,
        typer.Option(
            help="Seconds of a stage's F, I and W (F=5/6/7: stage by stage), of a transfer (p2p; "
            "p2p=0/1: between each stage and the next), and of a fused pair (FB)."
        ),
    ] = "F=1,I=1,W=1,p2p=0",
    pair: Annotated[
        str, typer.Option(help="How overlapped pairs run: fused or serial.", metavar="HOW")
    ] = "fused",
    p2p: Annotated[
        str,
        typer.Option(help="Streams of messages: direction, pair or batched.", metavar="POLICY"),
    ] = "direction",
    csv: Annotated[Path | None, target("FILE", "Write the order as torch's CSV.")] = None,
    plot: Annotated[Path | None, target("FILE", "Draw the timeline, such as a .png.")] = None,
    json: Json = False,
) -> None:
    """Run a pipeline schedule or an order by itself: makespan, bubble, activations, order."""
    from sim.runs.schedule_run import figures, legal_timeline
    from traincast.commands.parts import orders, output, values

    seconds, options = values.times(times), orders.options(option or ())
    policy, how = orders.policy(name, p2p), orders.pair(pair)
    if csv:
        output.replaceable(csv)
    if plot:
        output.picture(plot)
    output.apart({"--csv": csv, "--plot": plot}, Path(name) if orders.is_file(name) else None)
    asked = orders.Asked(ranks, microbatches, chunks)
    if orders.is_file(name):
        plan = orders.from_file(Path(name), asked, options, p2p)
        name = Path(name).name
    else:
        plan = orders.of_name(name, asked, options, seconds, p2p)
    ran = legal_timeline(plan, seconds, policy, how)
    result = figures(plan, ran)
    with output.together(*filter(None, (csv, plot))) as temporaries:
        if csv:
            from traces import schedule_csv

            temporaries[0].write_text(schedule_csv.text(plan), encoding="utf-8", newline="")
        if plot:
            from sim import plots

            plots.save(plots.timeline(ran, title=name), temporaries[-1])
    if json:
        output.print_json(result)
        return
    from traincast.commands.parts import tables

    tables.show_schedule(name, result)
    tables.show_files(filter(None, (csv, plot)))
