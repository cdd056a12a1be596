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

from sim.commands.recorder_more import recorder

if TYPE_CHECKING:
    from sim.recipe import Recipe

app = typer.Typer(
    help="From a training recipe to the timeline of its step.",
    epilog="Example: traincast run validation/recipes/korthikanti_22b_full.toml --out out",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(recorder, name="record")


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
            help="Write summary, trace, picture and complete recipe here.",
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
        files = _write(result, out, some_ranks, some_time, report) if out else None
        report("summary", 0, 0)
        summary = result.summary
    memory, capacity = summary["memory"], result.cluster.gpu.memory
    if json:
        output.print_json({**summary, **left_out, **({"what_if": changed} if changed else {})})
        tables.warn_overflow(memory, capacity)
        return
    tables.show_summary(summary, capacity)
    if changed:
        from sim.commands import what_ifs

        what_ifs.show(summary["step_time_s"], changed)
    if files:
        tables.show_files(files.paths)
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
        typer.Option(metavar="DIR", parser=_path, help="Write compare.png and frontier.png here."),
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
        for picture in comparison.PICTURES:
            output.replaceable(out / picture)
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
    names = (str(before), str(after))
    found = difference(*(shown.read(one) for one in (before, after)))
    if plot:
        from sim import plots

        drawn = plots.waterfall(found.before_s, found.after_s, found.waterfall)
        with output.replacing(plot) as temporary:
            plots.save(drawn, temporary)
    result = shown.figures(found)
    if json:
        output.print_json({"before": names[0], "after": names[1], **result})
        return
    shown.show(result, names)
    tables.show_files([plot] if plot else [])


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
        typer.Option(metavar="FORMAT FILE", help="Write it in a format, such as perfetto.json.gz."),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a recorded run did: shares of time, overlap, who keeps the others waiting."""
    from sim.commands import output, recordings, tables, values
    from sim.commands.progress import progress
    from traces import reading
    from traces.recording import Selection

    some_ranks = None if ranks is None else values.ranks(ranks, 1 << 20)
    some_time = None if window is None else values.window(window)
    write = None if to is None else recordings.writer(to[0])
    if to:
        output.replaceable(to[1])
    with progress() as report:
        recording = reading.read(traces, Selection(step, some_ranks, some_time), report)
        report("analysis", 0, 0)
        found = recordings.figures(recording)
        if to and write:
            recordings.convert(recording, write, to[1])
    if json:
        output.print_json(found)
        return
    recordings.show_figures(found)
    tables.show_files([to[1]] if to else [])


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


@app.command(epilog="Example: traincast validate korthikanti2022_table4")
def validate(
    tables: Annotated[
        list[str] | None,
        typer.Argument(help="Tables of published figures; all unless given.", metavar="[SET]..."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", parser=_path, help="Write the tables as Markdown."),
    ] = None,
    json: Json = False,
) -> None:
    """Predict published figures of real runs, and say how far off that is."""
    from sim.commands import errors, output
    from sim.commands.progress import progress
    from validation import run as runner

    if out:
        output.replaceable(out)
    with progress() as report:
        found = runner.summary(runner.validate(tables or (), report))
    if out:
        command = " ".join(["traincast validate", *(tables or ()), "--out", out.as_posix()])
        output.write_text(out, errors.markdown(found, command))
    if json:
        output.print_json(found)
    else:
        errors.show_errors(found)


@app.command(epilog="Example: traincast replay trace.parquet --hosts none")
def replay(
    traces: Annotated[
        list[Path], typer.Argument(help="Recorded traces: files, or a folder.", metavar="TRACE...")
    ],
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="HOW",
            help="Time of the host between ops: anchored (as recorded), modelled (as it usually "
            "is), or none. The first that the format has unless given.",
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
    json: Json = False,
) -> None:
    """Simulate a recorded run again from its operations, and say how far off that is."""
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
        read_step = None if hosts == "modelled" else step
        selection = Selection(read_step, some_ranks, some_time)
        found = replays.replay(reading.read(traces, selection, report), hosts, report)
        if step != read_step and step is not None:
            found = replays.only(found, step)
        if out:
            with output.replacing(out) as temporary:
                perfetto.write(
                    found.timeline, temporary, ranks=found.timeline.graph.ranks().tolist()
                )
    result = replaying.figures(found)
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


def _load(path: Path, settings: list[str] | None) -> Recipe:
    from sim import config

    return config.load(path, dict(config.setting(text) for text in settings or ()))


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: bad input is one sentence, a bug of ours a trace to report."""
    try:
        code = app(args=arguments, standalone_mode=False, obj=arguments)
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
