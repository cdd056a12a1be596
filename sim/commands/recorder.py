"""``traincast record``: real runs with torch, on GPUs over NCCL or on the CPU over gloo."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from schedules import Plan
    from schedules._times import Seconds

recorder = typer.Typer(
    help="Record real runs with torch: pipelines, parallel steps, kernels and transfers.",
    epilog="Example: traincast record pipeline one_f_one_b --virtual F=10,I=10,W=10 --out recorded",
    no_args_is_help=True,
)

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder of the files.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@recorder.command(
    epilog="Example: traincast record pipeline zb_v --virtual F=10,I=10,W=10 --fifo --out recorded"
)
def pipeline(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(help="Schedules, or orders in torch's CSV.", metavar="NAME...")
    ],
    out: Out,
    ranks: Annotated[int, typer.Option(min=1, metavar="P", help="Processes.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, metavar="M", help="Per step.")] = 8,
    chunks: Annotated[
        int | None, typer.Option(metavar="V", help="Stages per rank, where a schedule has several.")
    ] = None,
    virtual: Annotated[
        str | None,
        typer.Option(
            metavar="F=..,I=..,W=..",
            help="Stages that only take these milliseconds; real transformer blocks unless given.",
        ),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps.")] = 10,
    warm: Annotated[int, typer.Option(min=1, help="Steps before these.")] = 2,
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
        typer.Option(help="Inside overlapped pairs, virtual stages take this times as long."),
    ] = 1.0,
    fifo: Annotated[
        bool, typer.Option("--fifo", help="Before all other processes; virtual stages only.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Also a profiler trace of one more step.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
    json: Json = False,
) -> None:
    """Run plans in torch's pipeline runtime, and write when each action ran."""
    from traces.record import machine, pipelines

    machine.require_torch()
    times = None if virtual is None else _milliseconds(virtual)
    plans = {_stem(name): _plan(name, ranks, microbatches, chunks, times) for name in names}
    ask = pipelines.Ask(
        times, steps, warm, keep, message, runtime, overlap, fifo, profile, seed, timeout
    )
    found = pipelines.record(plans, ask, out, _command(context))
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
        from sim.commands import output

        output.print_json(result)
        return
    _show(result)


def _command(context: typer.Context) -> str:
    """What was typed."""
    from traces.record import machine

    return machine.command(sys.argv[1:] if context.obj is None else context.obj)


def _show(result: list[dict[str, Any]]) -> None:
    from sim.commands import tables

    rows = [
        (one["schedule"], f"{one['median_ms']:.2f} ms", f"{one['cv'] * 100:.2f} %",
         f"{one['steps_as_planned']}")
        for one in result
    ]  # fmt: skip
    tables.show(rows, "schedule", "median step", "deviation", "steps as planned")
    tables.show_files(Path(one["file"]) for one in result)


def _milliseconds(text: str) -> dict[str, float | list[float]]:
    """Seconds of F, I and W from milliseconds, as ``--times`` takes them."""
    from sim.commands import values

    found = values.times(text)
    if found.pop("p2p") or "FB" in found:
        raise ValueError("--virtual takes F, I and W in milliseconds; messages are real")
    return {
        key: v / 1e3 if isinstance(v, float) else [one / 1e3 for one in v]
        for key, v in found.items()
    }


def _plan(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None,
    times: Mapping[str, Seconds] | None,
) -> Plan:
    """The plan of a schedule or file; searched ones for the times of the virtual stages."""
    from sim.commands import orders

    if orders.is_file(name):
        return orders.from_file(Path(name), orders.Asked(None, None, None), {}, "direction")
    asked = orders.Asked(ranks, microbatches, chunks)
    seconds: dict[str, Seconds] = {**times} if times else {"F": 1.0, "I": 1.0, "W": 1.0}
    return orders.of_name(name, asked, {}, {**seconds, "p2p": 0.0})


def _stem(name: str) -> str:
    return Path(name).stem if name.lower().endswith(".csv") else name


@recorder.command(epilog="Example: traincast record parallel ddp fsdp2 tp --out recorded")
def parallel(
    context: typer.Context,
    modes: Annotated[
        list[str], typer.Argument(help="ddp, fsdp2, tp, zero1, ring or moe.", metavar="MODE...")
    ],
    out: Out,
    ranks: Annotated[int, typer.Option(min=2, metavar="N", help="Processes.")] = 2,
    steps: Annotated[int, typer.Option(min=1, help="Measured steps.")] = 10,
    seed: Annotated[int, typer.Option(help="Of weights and inputs.")] = 0,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
    json: Json = False,
) -> None:
    """Run small parallel trainings: the times of their steps, and profiler traces."""
    from traces.record import parallel as trainings

    command = _command(context)
    found = trainings.record(modes, out, command, ranks, steps, seed, timeout)
    result = [
        {"file": str(path), "schedule": one["mode"]}
        | {key: one[key] for key in ("median_ms", "min_ms", "max_ms", "cv")}
        for path, one in found
    ]
    if json:
        from sim.commands import output

        output.print_json(result)
        return
    from sim.commands import tables

    rows = [
        (one["schedule"], f"{one['median_ms']:.2f} ms", f"{one['cv'] * 100:.2f} %")
        for one in result
    ]
    tables.show(rows, "training", "median step", "deviation")
    tables.show_files(Path(one["file"]) for one in result)


@recorder.command(epilog="Example: traincast record fake recipe.toml --out collectives.json")
def fake(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="Recipe of FSDP2 and TP.", metavar="RECIPE")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write what torch issues, as JSON.")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 300.0,
    json: Json = False,
) -> None:
    """What torch would send in a recipe's step, by its fake process group; compared with ours."""
    from sim import runs
    from sim.commands import output
    from traces.record import fake as workload
    from traces.record import machine

    if out:
        output.replaceable(out)
    ran = runs.run(_recipe(recipe))
    before = machine.facts()
    events = workload.record(ran.job, timeout)
    torchs = workload.rows(events)
    found = workload.differences(ran.job, workload.rows_of(ran.timeline.graph), torchs)
    result: dict[str, Any] = {
        "collectives": workload.table(torchs),
        "differences": [
            {
                "reason": one.reason or None,
                "ours": workload.table(one.ours),
                "torch": workload.table(one.torchs),
            }
            for one in found
        ],
        "unexplained": sum(not one.reason for one in found),
        "command": _command(context),
        "machine": before,
    }
    if out:
        import json as text

        output.write_text(out, text.dumps({**result, "events": events}))
    if json:
        output.print_json(result)
        return
    from sim.commands import tables

    rows = [
        (row["collective"], f"{row['bytes']:,.0f}", str(len(row["ranks"])), str(row["count"]))
        for row in result["collectives"]
    ]
    tables.show(rows, "torch issues", "bytes", "ranks", "times")
    for one in found:
        counts = f"ours {one.ours.total()}, torch's {one.torchs.total()}"
        tables.say(f"only on one side, {counts}: {one.reason or 'not explained'}.")
    tables.show_files([out] if out else [])


def _recipe(path: Path) -> Any:
    from sim import config

    return config.load(path, {})


@recorder.command(epilog="Example: traincast record sweep p2p all_reduce --ranks 2 --out p2p.json")
def sweep(
    context: typer.Context,
    parts: Annotated[
        list[str],
        typer.Argument(
            help="p2p, all_reduce, launch, memory, attention or gemm.", metavar="PART..."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write the rows, as JSON.")],
    ranks: Annotated[int, typer.Option(min=1, metavar="N", help="Processes.")] = 1,
    seconds: Annotated[float, typer.Option(metavar="S", help="Time for all parts.")] = 60.0,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
) -> None:
    """Measure kernels and transfers by size."""
    from traces.record import sweep as sweeps

    _write(context, out, lambda: sweeps.record(parts, ranks, seconds, timeout))


@recorder.command(epilog="Example: traincast record streams one_f_one_b zb_v --out streams.json")
def streams(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(help="Schedules, or orders in torch's CSV.", metavar="NAME...")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where to write it, as JSON.")],
    ranks: Annotated[int, typer.Option(min=1, metavar="P", help="Streams that compute.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, metavar="M", help="Per step.")] = 8,
    virtual: Annotated[
        str, typer.Option(metavar="F=..,I=..,W=..", help="Milliseconds of the steps.")
    ] = "F=4,I=3,W=2",
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 300.0,
) -> None:
    """On one GPU: what slows what beside it, and pipelines whose ranks are streams."""
    from traces.record import streams as pipelines_on_streams

    times = _milliseconds(virtual)
    if any(isinstance(one, list) for one in times.values()):
        raise ValueError("--virtual takes one number each for F, I and W on streams")
    plans = {_stem(name): _plan(name, ranks, microbatches, None, times) for name in names}
    one: dict[str, float] = times  # type: ignore[assignment]
    _write(context, out, lambda: pipelines_on_streams.record(plans, one, timeout=timeout))


@recorder.command("all", epilog="Example: traincast record all --budget 600 --out recorded")
def all_(
    context: typer.Context,
    out: Out,
    budget: Annotated[float, typer.Option(min=30, metavar="S", help="Seconds for all.")] = 600.0,
) -> None:
    """Record all that this machine can show; what it cannot is named in DIR/result.json."""
    from sim.commands import tables
    from traces.record import everything

    tables.show_files([everything.record(out, budget, _command(context))])


def _write(context: typer.Context, out: Path, make: Any) -> None:
    """Write what is made, with command and machine, as JSON."""
    import json as text

    from sim.commands import output, tables
    from traces.record import machine

    output.replaceable(out)
    facts = {"command": _command(context), "machine": machine.facts()}
    output.write_text(out, text.dumps({**facts, **make()}, indent=1))
    tables.show_files([out])
