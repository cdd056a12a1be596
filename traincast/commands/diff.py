"""The command ``traincast diff``: two timelines, and why one is longer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincast.commands.parts.options import AllowUnknown, Json, target

EXAMPLE = "Example: traincast diff out/timeline.json.gz recipe.toml --plot diff.png"


def command(
    before: Annotated[
        Path, typer.Argument(help="Before: a timeline.json.gz, a trace, or a recipe.", metavar="A")
    ],
    after: Annotated[Path, typer.Argument(help="After: another one.", metavar="B")],
    plot: Annotated[Path | None, target("FILE", "Draw the waterfall, such as a .png.")] = None,
    out: Annotated[Path | None, target("DIR", "Write diff.html, a page with both, here.")] = None,
    allow_unknown: AllowUnknown = False,
    json: Json = False,
) -> None:
    """Compare two timelines: which causes make the step longer, and which ops changed."""
    from sim.analysis.difference import difference
    from traincast.commands.parts import difference as shown
    from traincast.commands.parts import output, tables
    from traincast.commands.parts.progress import progress

    if plot:
        output.picture(plot)
        for read in (before, after):
            output.apart({"--plot": plot}, read)
    if out:
        output.replaceable(output.writable(out) / shown.PAGE)
    names = (str(before), str(after))
    with progress() as report:
        sides = [shown.read(one, allow_unknown, report) for one in (before, after)]
        report("comparing", 0, 0)
        timelines = sides[0].timeline, sides[1].timeline
        found = difference(*timelines, [side.stand_ins for side in sides])
    if plot:
        from sim import plots

        output.draw(plots.waterfall(found.before_s, found.after_s, found.waterfall), plot)
    result = shown.figures(found)
    page = shown.write_page(out, names, timelines, result) if out else None
    if json:
        output.print_json({"before": names[0], "after": names[1], **result})
        return
    shown.show(result, names)
    tables.show_files(filter(None, (plot, page)))
