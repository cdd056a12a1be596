"""The command line, ``traincast``: each command is one call that a notebook can make too.

Exit 0: done. Exit 2: bad input, one sentence on standard error. Exit 1: our bug.
Exit 130: interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.recipe import Recipe

app = typer.Typer(
    help="From a training recipe to the timeline of its step.",
    epilog="Example: traincast run validation/recipes/korthikanti_22b_full.toml --out out",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _path(text: str) -> Path:
    if not text:
        raise typer.BadParameter("an empty path names no file; give a name, or leave it out")
    return Path(text)


INTERRUPTED = 130  # exit code of what Ctrl-C ended

RecipeFile = Annotated[Path, typer.Argument(help="Recipe, a TOML file.", metavar="RECIPE")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Put a value over the recipe's; may be given several times. KEY= leaves it out.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


@app.command(epilog="Example: traincast run recipe.toml --set parallelism.tp=4 --out out")
def run(
    recipe: RecipeFile,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=_path,
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
    job = _load(recipe, set_)
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


@app.command(epilog="Example: traincast compare recipe.toml --schedules all --out out")
def compare(
    recipe: RecipeFile,
    names: Annotated[
        str | None, typer.Option("--schedules", metavar="A,B", help="Schedules, or all.")
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V1,V2", help="Values of a key; several times for all combinations."
        ),
    ] = None,
    set_: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=_path,
            help="Write compare.html, compare.png and frontier.png here.",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Run a recipe in several ways: a table, timelines on one axis, time against memory."""
    from sim import compare as ways
    from sim import config
    from sim.commands import comparison, output, tables, values
    from sim.commands.progress import progress

    base = _load(recipe, set_)
    common = dict(config.setting(text) for text in set_ or ())
    if (names is None) == (not vary):
        raise ValueError(
            "compare takes either --schedules A,B or --vary KEY=V1,V2; "
            "--vary schedule.name=a,b goes with further --vary of other keys"
        )
    if out:
        output.writable(out)
        for name in (comparison.PAGE, *comparison.PICTURES):
            output.replaceable(out / name)
    chosen = (
        ways.by_schedule(names.split(","), base, common)
        if names is not None
        else ways.by_value(values.vary(vary or []), common)
    )
    with progress() as report:
        found = ways.compare(recipe, chosen, report)
    files = comparison.draw(found, out) if out else []
    if json:
        output.print_json(comparison.summaries(found))
    else:
        comparison.show(found)
        comparison.note(ways.spread(chosen, base) if names is not None else [])
        tables.show_files(files)
    if not any(way.result for way in found):
        raise typer.Exit(2)


@app.command(
    epilog="Example: traincast sweep recipe.toml --vary perturbations[0].compute=1.0,1.1,1.3 "
    "--vary schedule.name=one_f_one_b,zb_1p --out sweep.parquet --plot sweep.png"
)
def sweep(
    recipe: RecipeFile,
    vary: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=V1,V2", help="Values of a key; several times for all combinations."
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", parser=_path, help="Parquet file; rows that it has are kept."),
    ],
    set_: Settings = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes; -1 is one for each CPU.")] = -1,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Draw step time against a key."),
    ] = None,
    x: Annotated[
        str | None,
        typer.Option("--x", metavar="KEY", help="That key; the first with numbers unless given."),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate many configurations into a Parquet file; run again, an interrupted one goes on."""
    from sim import config
    from sim import sweep as sweeps
    from sim.commands import output, sweeping, tables, values
    from sim.commands.progress import progress

    chosen = values.vary(vary)
    along = sweeping.axis(chosen, x) if plot or x else ""
    if jobs == 0:
        raise ValueError("--jobs takes a number of processes such as 4, or -1, and not 0")
    output.replaceable(out)
    if plot:
        output.picture(plot)
    output.apart({"--out": out, "--plot": plot}, recipe)
    common = dict(config.setting(text) for text in set_ or ())
    with progress() as report:
        rows = sweeps.sweep(recipe, chosen, out, common, jobs, report)
    if plot:
        from sim import plots

        with output.replacing(plot) as temporary:
            plots.save(sweeping.draw(rows, [*chosen], along), temporary)
    if json:
        output.print_json(rows)
    else:
        sweeping.show(rows, [*chosen])
        tables.show_files(filter(None, (out, plot)))
    if all(row["refused"] for row in rows):
        raise typer.Exit(2)


@app.command(epilog="Example: traincast diff out/timeline.json.gz recipe.toml --plot diff.png")
def diff(
    before: Annotated[
        Path, typer.Argument(help="A timeline.json.gz, a trace, or a recipe.", metavar="A")
    ],
    after: Annotated[Path, typer.Argument(help="Likewise.", metavar="B")],
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Draw the waterfall, such as a .png."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=_path, help="Write diff.html, both timelines, here."),
    ] = None,
    json: Json = False,
) -> None:
    """Compare two timelines: which causes make the step longer, and which ops changed."""
    from sim.analysis.difference import difference
    from sim.commands import difference as shown
    from sim.commands import output, tables

    if plot:
        output.picture(plot)
        for read in (before, after):
            output.apart({"--plot": plot}, read)
    if out:
        output.replaceable(output.writable(out) / shown.PAGE)
    names = (str(before), str(after))
    timelines = shown.read(before), shown.read(after)
    found = difference(*timelines)
    if plot:
        from sim import plots

        drawn = plots.waterfall(found.before_s, found.after_s, found.waterfall)
        with output.replacing(plot) as temporary:
            plots.save(drawn, temporary)
    result = shown.figures(found)
    page = shown.write_page(out, names, timelines, result) if out else None
    if json:
        output.print_json({"before": names[0], "after": names[1], **result})
        return
    shown.show(result, names)
    tables.show_files(filter(None, (plot, page)))


@app.command(epilog="Example: traincast check recipe.toml --set parallelism.pp=8")
def check(
    recipe: RecipeFile,
    set_: Settings = None,
    balance: Annotated[
        bool,
        typer.Option("--balance", help="Print the layers_per_stage that suit all ranks best."),
    ] = False,
    json: Json = False,
) -> None:
    """Say whether a recipe is a legal job, and what memory it needs, without simulating it."""
    job = _load(recipe, set_)
    from sim.check import check as examine
    from sim.commands import ignored, output, tables

    left_out = ignored.warn(recipe)
    if balance:
        from sim.balance import balance as best

        layers = best(job)
        if json:
            output.print_json({"layers_per_stage": layers, **left_out})
        else:
            tables.say(f"layers_per_stage = {layers}")
        return
    found = examine(job)
    capacity = found["capacity_bytes"]
    if json:
        output.print_json({**found, **left_out})
        tables.warn_overflow(found["memory"], capacity)
        return
    tables.show_memory(found["memory"], capacity)


@app.command(epilog="Example: traincast schedule one_f_one_b --ranks 4 --microbatches 8")
def schedule(
    name: Annotated[
        str, typer.Argument(help="A schedule (see list schedules), or an order in torch's CSV.")
    ],
    ranks: Annotated[
        int | None, typer.Option(metavar="P", help="Ranks of the pipeline; a file says them.")
    ] = None,
    microbatches: Annotated[
        int | None, typer.Option(metavar="M", help="Microbatches per step; a file says them.")
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
            help="Seconds of a stage's F, I, W (F=5/6/7: stage by stage), of a transfer, p2p, "
            "of a fused pair, FB."
        ),
    ] = "F=1,I=1,W=1,p2p=0",
    pair: Annotated[
        str, typer.Option(help="How overlapped pairs run: fused or serial.", metavar="HOW")
    ] = "fused",
    p2p: Annotated[
        str,
        typer.Option(help="Streams of messages: direction, pair or batched.", metavar="POLICY"),
    ] = "direction",
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Write the order as torch's CSV."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Draw the timeline, such as a .png."),
    ] = None,
    json: Json = False,
) -> None:
    """Run a pipeline schedule or an order by itself: makespan, bubble, activations, order."""
    from sim.commands import orders, output, values
    from sim.schedule_run import figures, legal_timeline

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
        plan = orders.of_name(name, asked, options, seconds)
    ran = legal_timeline(plan, seconds, policy, how)
    result = figures(plan, ran)
    with ExitStack() as files:  # both or none
        if csv:
            from traces import schedule_csv

            temporary = files.enter_context(output.replacing(csv))
            temporary.write_text(schedule_csv.text(plan), encoding="utf-8", newline="")
        if plot:
            from sim import plots

            temporary = files.enter_context(output.replacing(plot))
            plots.save(plots.timeline(ran, title=name), temporary)
    if json:
        output.print_json(result)
        return
    from sim.commands import tables

    tables.show_schedule(name, result)
    tables.show_files(filter(None, (csv, plot)))


@app.command("list", epilog="Example: traincast list models")
def list_(
    kind: Annotated[str, typer.Argument(help="models, topologies, schedules or strategies.")],
    json: Json = False,
) -> None:
    """Name what comes along: models, topologies, schedules or strategies."""
    from sim.commands import catalog, output

    entries = catalog.entries(kind)
    if json:
        output.print_json(entries)
        return
    from sim.commands import tables

    tables.show_list(*catalog.rows(kind, entries))


@app.command(epilog="Example: traincast init config.json dgx_h100 --gpus 16 --out recipe.toml")
def init(
    model: Annotated[
        Path, typer.Argument(help="config.json of a Hugging Face model.", metavar="HF_CONFIG")
    ],
    topology: Annotated[
        str, typer.Argument(help="Name or file of a topology.", metavar="TOPOLOGY")
    ],
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of the job; as many as it needs unless given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=_path, help="Where to write the recipe.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file.")] = False,
    json: Json = False,
) -> None:
    """Write a recipe to edit, for a model on a machine."""
    from sim.commands import output, starter

    folder = out.parent if out else Path()
    if out:
        output.replaceable(out)
        if out.exists() and not force:
            raise ValueError(f"{out} is there already; name another file, or give --force")
    data = starter.propose(model, topology, gpus, folder)
    text = starter.text(data, folder)
    if out:
        output.write_text(out, text)
    if json:
        output.print_json(data)
    elif not out:
        print(text)
    else:
        print(f"wrote {out}; next: traincast run {out}")


@app.command(epilog="Example: traincast topology dgx_h100 --gpus 64")
def topology(
    name: Annotated[str, typer.Argument(help="Name or file of a topology.")],
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs in use; one node unless given.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the machine, such as a .png.")
    ] = None,
    json: Json = False,
) -> None:
    """Show a machine: its GPU, links and routes."""
    from sim import cluster
    from sim.commands import machine, output

    if plot:
        output.picture(plot)
    found = cluster.load(name, gpus or cluster.load(name, 1).gpus_per_node)
    if plot:
        from sim import plots

        with output.replacing(plot) as temporary:
            plots.save(plots.topology(found), temporary)
    if json:
        output.print_json(machine.describe(found))
        return
    from sim.commands import tables

    tables.show_machine(machine.describe(found))
    tables.show_files([plot] if plot else [])


@app.command(epilog="Example: traincast analyze traces/rank0.json.gz traces/rank1.json.gz --step 3")
def analyze(
    traces: Annotated[
        list[Path],
        typer.Argument(
            help="Recorded files, one per rank, or folders of them.", metavar="TRACE..."
        ),
    ],
    step: Annotated[
        int | None,
        typer.Option(metavar="N", help="Only this training step, as the files number it."),
    ] = None,
    ranks: Annotated[str | None, typer.Option(metavar="0,4-7", help="Only these ranks.")] = None,
    window: Annotated[
        str | None, typer.Option(metavar="FROM:TO", help="Only these seconds of the recording.")
    ] = None,
    to: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="FORMAT PATH",
            help="Write it: perfetto FILE.json.gz, or chakra FOLDER (a file per rank).",
        ),
    ] = None,
    annotation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only what was launched inside an annotation."),
    ] = None,
    instance: Annotated[
        int, typer.Option(metavar="N", min=0, help="Which one of that name, from 0.")
    ] = 0,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Draw the timeline and critical path."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=_path, help="Write report.html, to look around, here."),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show all rows of all tables.")] = False,
    json: Json = False,
) -> None:
    """Say what a recorded run did and why it took so long: path, idle time, overlap, stragglers."""
    from sim.commands import output, recording_tables, recordings, tables, values
    from sim.commands.progress import progress
    from traces import reading
    from traces.recording import Selection

    some_ranks = None if ranks is None else values.ranks(ranks, 1 << 20)
    some_time = None if window is None else values.window(window)
    for path in traces:
        output.apart({"--plot": plot, "--to": to[1] if to else None}, path)
    if to:
        recordings.writer(to[0])
        if to[0] != "chakra":
            output.replaceable(to[1])
    if plot:
        output.picture(plot)
    if out:
        output.replaceable(output.writable(out) / recordings.PAGE)
    selection = Selection(step, some_ranks, some_time, annotation, instance)
    with progress() as report:
        recording = reading.read(traces, selection, report)
        report("analysis", 0, 0)
        found = recordings.figures(recording)
        if to:
            recordings.convert(recording, *to)
        if plot:
            recordings.draw(recording, plot)
        page = recordings.write_page(out, traces, recording, found) if out else None
    if json:
        output.print_json(found)
        return
    recording_tables.show_figures(found, everything)
    tables.show_files(filter(None, (to[1] if to else None, plot, page)))


@app.command(epilog="Example: traincast calibrate h100 --write")
def calibrate(
    gpu: Annotated[str, typer.Argument(help="Kind of GPU, such as a100 or h100.")],
    write: Annotated[
        bool, typer.Option("--write", help="Put the constants into the topology file.")
    ] = False,
    json: Json = False,
) -> None:
    """Fit a GPU's constants to measured kernels and collectives, never to step times."""
    from sim.commands import output
    from traces import calibrate as calibration

    fitted = calibration.calibrate(gpu)
    file = fitted.write() if write else None
    if json:
        output.print_json(_calibration(fitted))
        return
    print(fitted.toml())
    for error in fitted.errors:
        print(f"# {error}")
    if file:
        print(f"# wrote {file}")


@app.command(
    epilog="Examples: traincast validate korthikanti2022_table4; "
    "traincast validate recorded runs/ --calibrate runs/1F1B.json.gz"
)
def validate(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            help="Tables of published figures, all unless given; or the word recorded, and files "
            "or folders of recorded pipelines (ours unless given).",
            metavar="[SET]...",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Write the tables as Markdown."),
    ] = None,
    calibrate: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Recorded: fit costs to this run and predict the others; also the JSON of a p2p "
            "sweep. May be given several times.",
        ),
    ] = None,
    freeze: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Recorded: write the fitted costs there, and stop."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", parser=_path, help="Recorded: draw one run above its prediction."
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option(metavar="N", help="Recorded: steps with costs drawn at random.")
    ] = 40,
    seed: Annotated[int, typer.Option(metavar="N", help="Recorded: of the draws.")] = 0,
    json: Json = False,
) -> None:
    """Predict published figures of real runs, or recorded runs, and say how far off that is."""
    from sim.commands import errors, output, recorded
    from sim.commands.tables import show_files

    if tables and tables[0] == "recorded":
        if freeze:
            show_files(recorded.freeze(calibrate or [], freeze))
            return
        found = recorded.validate(tables[1:], calibrate or [], plot, out, draws, seed)
        output.print_json(found) if json else recorded.show_recorded(found)
        return
    if calibrate or freeze or plot:
        raise ValueError("--calibrate, --freeze and --plot go with: traincast validate recorded")
    figures = errors.validate(tables or (), out)
    output.print_json(figures) if json else errors.show_errors(figures)


@app.command(epilog='Example: traincast replay traces/ --what-if "remove stragglers"')
def replay(
    traces: Annotated[
        list[Path], typer.Argument(help="Recorded traces: files, or a folder.", metavar="TRACE...")
    ],
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Time of the host between ops: anchored (as recorded), modelled (its gaps and "
            "waits, or as it usually is), or none: calls in the same order that take no time, so "
            "the least that a faster host could give. The first that the format has unless given.",
        ),
    ] = None,
    step: Annotated[
        int | None, typer.Option(metavar="N", help="One training step, as the file numbers it.")
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(metavar="0,4-7", help="Ranks that are replayed.")
    ] = None,
    window: Annotated[
        str | None, typer.Option(metavar="A:B", help="Seconds of the recording.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Write the replayed timeline here."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="EDIT",
            help="'compute * 0.8 where kind=gemm', 'launch * 0.5', 'remove stragglers'; repeat for "
            "more. The host then keeps its gaps, not its times (modelled).",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Simulate a recorded run again from its operations: how far off that is, or what if."""
    from sim.commands import output, replaying, values
    from sim.commands.progress import progress
    from traces import perfetto, reading, replays
    from traces.recording import Selection

    if out:
        output.replaceable(out)
        for path in traces:
            output.apart({"--out": out}, path)
    some_ranks = None if ranks is None else values.ranks(ranks)
    some_time = None if window is None else values.window(window)
    with progress() as report:
        # gaps of a step are learnt from the others, so these are read too
        read_step = None if hosts == "modelled" and not what_if else step
        selection = Selection(read_step, some_ranks, some_time)
        recording = reading.read(traces, selection, report)
        if what_if and hosts is None:
            hosts = replays.usual(recording.format)
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
        from sim.commands import tables

        tables.show_files([out])


def _calibration(fitted: Any) -> dict[str, Any]:
    return {
        "gpu": fitted.gpu,
        "constants": fitted.constants,
        "collectives": fitted.collectives,
        "errors": [error._asdict() for error in fitted.errors],
    }


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


def _load(path: Path, settings: list[str] | None) -> Recipe:
    from sim import config

    return config.load(path, dict(config.setting(text) for text in settings or ()))


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: bad input is one sentence, a bug of ours a trace to report."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except BrokenPipeError:  # the reader of our output has left, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except (ValueError, OSError) as error:
        code = _refuse(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except Exception as error:
        said = getattr(error, "format_message", None)  # typer's own: usage
        if said:
            code = _refuse(said()) if said() else 2
        else:
            traceback.print_exc()
            print(
                "error: this is a bug in traincast; please report the lines above", file=sys.stderr
            )
            code = 1
    if code == INTERRUPTED:  # which typer may have said itself
        print("interrupted", file=sys.stderr)
    sys.exit(code or 0)


def _refuse(sentence: str) -> int:
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}error:{plain} {' '.join(sentence.split())}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
