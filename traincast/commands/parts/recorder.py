"""``traincast record``: real runs with torch, on GPUs over NCCL or on the CPU over gloo."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import Json, target

if TYPE_CHECKING:
    from schedules import Plan
    from schedules.times import Seconds

recorder = typer.Typer(
    help="Record real runs with torch: pipelines, parallel steps, kernels and transfers.",
    epilog="Example: traincast record pipeline one_f_one_b --virtual F=10,I=10,W=10 --out recorded",
    no_args_is_help=True,
)

_STEP = (
    ("median step", "median_ms", "{:.2f} ms".format),
    ("deviation", "cv", ".2 %"),
)
_PARTS = ("math_ms", "host_ms", "wait_ms", "exposed_ms")
Out = Annotated[Path, target("DIR", "Folder of the files.")]


@recorder.command(
    epilog="Example: traincast record pipeline zb_v --virtual F=10,I=10,W=10 --fifo --out recorded"
)
def pipeline(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(help="Schedules, or orders in torch's CSV.", metavar="NAME...")
    ],
    out: Out,
    ranks: Annotated[int, typer.Option(min=1, max=256, metavar="P", help="Processes.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, metavar="M", help="Per step.")] = 8,
    chunks: Annotated[
        int | None, typer.Option(metavar="V", help="Stages per rank, where a schedule has several.")
    ] = None,
    virtual: Annotated[
        str | None,
        typer.Option(
            metavar="F=..,I=..,W=..",
            help="Stages only take these milliseconds; they are transformer blocks unless given.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps.")] = 10,
    warm: Annotated[int, typer.Option(min=1, help="Steps before the measured ones.")] = 2,
    keep: Annotated[
        int | None, typer.Option(min=1, help="Steps whose events are written; all unless given.")
    ] = None,
    message: Annotated[int, typer.Option(help="Bytes sent between virtual stages.")] = 4096,
    runtime: Annotated[
        str,
        typer.Option(metavar="csv|class", help="Run our order, or torch's class of that name."),
    ] = "csv",
    overlap: Annotated[
        float,
        typer.Option(help="Virtual stages inside overlapped pairs take this many times as long."),
    ] = 1.0,
    fifo: Annotated[
        bool,
        typer.Option("--fifo", help="Run before all other processes; for virtual stages only."),
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also write a profiler trace of one more step.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
    json: Json = False,
) -> None:
    """Run plans in torch's pipeline runtime, and write when each action ran."""
    from traces.record import machine, pipelines

    machine.require_torch()
    times = None if virtual is None else milliseconds(virtual)
    plans = {stem(name): plan_of(name, ranks, microbatches, chunks, times) for name in names}
    ask = pipelines.PipelineOptions(
        times, steps, warm, keep, message, runtime, overlap, fifo, profile, seed, timeout
    )
    found = pipelines.record(plans, ask, out, command(context))
    result = [
        {
            "file": str(path),
            "schedule": facts["cfg"]["plan"],
            **pipelines.spread(facts["step_ms_all"]),
            "steps_as_planned": facts["steps_as_planned"],
            "noise": facts["noise"],
            "load": facts["machine"]["load"],
        }
        for path, facts in found
    ]
    if json:
        from traincast.commands.parts import output

        output.print_json(result)
        return
    _show(result)


def command(context: typer.Context) -> str:
    """Return what was typed."""
    from traces.record import machine

    return machine.command(sys.argv[1:] if context.obj is None else context.obj)


def _show(result: list[dict[str, Any]]) -> None:
    from traincast.commands.parts import tables

    planned = ("steps as planned", "steps_as_planned")
    tables.show(result, ("schedule", "schedule"), *_STEP, planned)
    tables.show_files(Path(one["file"]) for one in result)


def milliseconds(text: str) -> dict[str, float | list[float]]:
    """Return the seconds of F, I and W from milliseconds written as in ``--times``."""
    from traincast.commands.parts import values

    try:
        found = values.times(text)
    except InputError as error:
        raise InputError(str(error).replace("--times", "--virtual")) from None
    if found.pop("p2p") or "FB" in found:
        raise InputError("--virtual takes F, I and W in milliseconds; messages take real time")
    return {
        key: v / 1e3 if isinstance(v, float) else [one / 1e3 for one in v]
        for key, v in found.items()
    }


def plan_of(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None,
    times: Mapping[str, Seconds] | None,
) -> Plan:
    """Return the plan of a schedule or file, searched for the times of the virtual stages."""
    from traincast.commands.parts import orders

    if orders.is_file(name):
        return orders.from_file(Path(name), orders.Asked(None, None, None), {}, "direction")
    asked = orders.Asked(ranks, microbatches, chunks)
    seconds: dict[str, Seconds] = {**times} if times else {"F": 1.0, "I": 1.0, "W": 1.0}
    return orders.of_name(name, asked, {}, {**seconds, "p2p": 0.0})


def stem(name: str) -> str:
    """Return the name of a schedule, or of a file without its ending."""
    return Path(name).stem if name.lower().endswith(".csv") else name


@recorder.command(
    epilog="Example: traincast record parallel ddp fsdp2 tp --sizes blocks=4,d=128 --out recorded"
)
def parallel(
    context: typer.Context,
    modes: Annotated[
        list[str],
        typer.Argument(help="ddp, ddp_hook, fsdp2, tp, zero1, ring or moe.", metavar="MODE..."),
    ],
    out: Out,
    sizes: Annotated[
        str,
        typer.Option(
            metavar="KEY=N,..",
            help="Sizes of the model: blocks, d, heads, ffn, seq, mb, bucket_mb.",
        ),
    ] = "",
    optimizer: Annotated[str, typer.Option(metavar="sgd|adamw", help="The optimizer.")] = "sgd",
    ranks: Annotated[int, typer.Option(min=2, max=256, metavar="N", help="Processes.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps.")] = 10,
    profiled: Annotated[
        int, typer.Option(min=1, help="Further steps, under torch's profiler.")
    ] = 10,
    traces: Annotated[
        bool, typer.Option("--traces", help="Keep the profiler's traces too.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
    json: Json = False,
) -> None:
    """Run small parallel trainings, and write how long their steps took and why."""
    from traces.record import parallel as trainings
    from traces.record.parallel_sizes import parsed

    ask = trainings.ParallelOptions(
        ranks, steps, profiled, seed, timeout, parsed(sizes), optimizer, traces
    )
    found = trainings.record(modes, out, command(context), ask)
    result = [
        {"file": str(path), "schedule": one["mode"]}
        | {key: value for key, value in one.items() if key != "mode"}
        for path, one in found
    ]
    if json:
        from traincast.commands.parts import output

        output.print_json(result)
        return
    from traincast.commands.parts import tables

    shown = ((key.removesuffix("_ms"), key, "{:.2f} ms".format) for key in _PARTS)
    rows = ({**dict.fromkeys(_PARTS), **one} for one in result)
    tables.show(rows, ("training", "schedule"), *_STEP, *shown)
    if any(_PARTS[0] in one for one in result):
        parts = ", ".join(key.removesuffix("_ms") for key in _PARTS)
        tables.say(f"{parts} are of profiled steps, which take longer than timed ones")
    tables.show_files(Path(one["file"]) for one in result)
