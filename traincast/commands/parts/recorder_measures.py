"""More of ``traincast record``, without training: what torch would send, kernels, streams, all."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from schedules.input_error import InputError
from traincast.commands.parts.options import Json, load, target
from traincast.commands.parts.recorder import Out, command, milliseconds, plan_of, recorder, stem

__all__ = ["recorder"]

TERMINATED = 143  # 128 plus the number of SIGTERM, as in shells


@recorder.command(epilog="Example: traincast record fake recipe.toml --out collectives.json")
def fake(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="Recipe of FSDP2 and TP.", metavar="RECIPE")],
    out: Annotated[Path | None, target("FILE", "Write what torch issues, as JSON.")] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 300.0,
    json: Json = False,
) -> None:
    """Record what torch would send in a recipe's step, with its fake process group, and compare."""
    from sim.runs import run as runs
    from traces.record import fake as workload
    from traces.record import machine
    from traincast.commands.parts import output

    if out:
        output.replaceable(out)
    ran = runs.run(load(recipe))
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
        "command": command(context),
        "machine": before,
    }
    if out:
        import json as text

        output.write_text(out, text.dumps({**result, "events": events}))
    if json:
        output.print_json(result)
        return
    from traincast.commands.parts import tables

    tables.show(
        result["collectives"],
        ("torch issues", "collective"),
        ("bytes", "bytes", ",.0f"),
        ("ranks", lambda row: len(row["ranks"])),
        ("times", "count"),
    )
    for one in found:
        counts = f"ours {one.ours.total()}, torch's {one.torchs.total()}"
        tables.say(f"only on one side, {counts}: {one.reason or 'not explained'}.")
    tables.show_files([out] if out else [])


@recorder.command(epilog="Example: traincast record sweep p2p all_reduce --ranks 2 --out p2p.json")
def sweep(
    context: typer.Context,
    parts: Annotated[
        list[str],
        typer.Argument(
            help="p2p, all_reduce (between ranks); launch, memory, elementwise, attention, block, "
            "gemm; under load: sustain, mixture, overlap.",
            metavar="PART...",
        ),
    ],
    out: Annotated[Path, target("FILE", "Where to write the rows, as JSON.")],
    ranks: Annotated[int, typer.Option(min=1, max=256, metavar="N", help="Processes.")] = 1,
    seconds: Annotated[
        float | None,
        typer.Option(
            metavar="S",
            help="Time for all parts. Unless given, 60, and what parts under load usually take.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
    json: Json = False,
) -> None:
    """Measure kernels and transfers by size, and GPUs under load; again to resume."""
    from traces.record import machine, sweep_file
    from traces.record import sweep as sweeps
    from traincast.commands.parts import output
    from traincast.commands.parts.progress import progress

    output.replaceable(out)
    facts = {"command": command(context), "machine": machine.facts()}
    begun = sweep_file.begun(out, facts)
    with progress() as report:

        def each(found: sweeps.Found, what: str, done: int, of: int) -> None:
            report(what, done, of)
            if found["done"]:
                sweep_file.write(out, facts, found)

        found = sweeps.record(parts, ranks, seconds, timeout, begun, each)
    sweep_file.write(out, facts, found)
    _say(out, {**facts, **found}, json)


@recorder.command(epilog="Example: traincast record host --out host.json")
def host(
    context: typer.Context,
    out: Annotated[Path, target("FILE", "Where to write the prices, as JSON.")],
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 600.0,
    json: Json = False,
) -> None:
    """Measure what issuing kernels costs this host, for simulation.host = "FILE" in a recipe."""
    from traces.record import host as hosts

    _write(context, out, lambda: hosts.record(timeout), json)
    if not json:
        from traincast.commands.parts import host_table

        host_table.show(out)


@recorder.command(epilog="Example: traincast record streams one_f_one_b zb_v --out streams.json")
def streams(
    context: typer.Context,
    names: Annotated[
        list[str], typer.Argument(help="Schedules, or orders in torch's CSV.", metavar="NAME...")
    ],
    out: Annotated[Path, target("FILE", "Where to write it, as JSON.")],
    ranks: Annotated[int, typer.Option(min=1, max=256, metavar="P", help="Computing streams.")] = 4,
    microbatches: Annotated[int, typer.Option(min=1, metavar="M", help="Per step.")] = 8,
    virtual: Annotated[
        str, typer.Option(metavar="F=..,I=..,W=..", help="Milliseconds of the steps.")
    ] = "F=4,I=3,W=2",
    timeout: Annotated[float, typer.Option(metavar="S", help="Give up after so long.")] = 300.0,
    json: Json = False,
) -> None:
    """Measure on one GPU how kernels slow each other, and run pipelines with streams as ranks."""
    from traces.record import streams as pipelines_on_streams

    times = milliseconds(virtual)
    if any(isinstance(one, list) for one in times.values()):
        raise InputError("--virtual takes one number each for F, I and W on streams")
    plans = {stem(name): plan_of(name, ranks, microbatches, None, times) for name in names}
    one: dict[str, float] = times  # type: ignore[assignment]
    _write(context, out, lambda: pipelines_on_streams.record(plans, one, timeout=timeout), json)


@recorder.command("all", epilog="Example: traincast record all --budget 600 --out recorded")
def all_(
    context: typer.Context,
    out: Out,
    budget: Annotated[float, typer.Option(min=30, metavar="S", help="Seconds in all.")] = 600.0,
    json: Json = False,
) -> None:
    """Record all that this machine can show; DIR/result.json names what it cannot."""
    import json as text

    from traces.record import everything
    from traincast.commands.parts import output, tables

    try:
        path = everything.record(out, budget, command(context))
    except everything.Ended as end:
        print(
            f"error: told to end by {end}; {out / 'result.json'} has what was done", file=sys.stderr
        )
        raise typer.Exit(TERMINATED) from None
    result = text.loads(path.read_text(encoding="utf-8"))
    if json:
        output.print_json(result)
        return
    tables.show(result["seconds"].items(), "section", ("took", 1, "{:.1f} s".format))
    for one in result["skipped"]:
        tables.say(f"without {one['section']}: {one['why']}.")
    tables.show_files([path, *(out / name for name in everything.files(result))])


def _write(context: typer.Context, out: Path, make: Any, json: bool) -> None:
    """Write what is made, with command and machine, as JSON; print it too where asked to."""
    import json as text

    from traces.record import machine
    from traincast.commands.parts import output

    output.replaceable(out)
    facts = {"command": command(context), "machine": machine.facts()}
    result = {**facts, **make()}
    output.write_text(out, text.dumps(result, indent=1))
    _say(out, result, json)


def _say(out: Path, result: dict[str, Any], json: bool) -> None:
    """Print what was written, or where it is and what it lacks."""
    from traincast.commands.parts import output, tables

    if json:
        output.print_json(result)
        return
    tables.show_files([out])
    if skipped := result.get("skipped"):
        parts = skipped.items() if isinstance(skipped, dict) else [(out.stem, skipped)]
        for part, why in parts:
            tables.say(f"without {part}: {why}.")
