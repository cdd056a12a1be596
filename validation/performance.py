"""The page of speed and memory: what commands, large jobs, engines, sweeps and traces cost.

``python -m validation.performance > docs/performance.md`` writes the page, in some ten minutes.
"""

from __future__ import annotations

import os
import platform

import numpy as np

from sim.table import Table, markdown, table
from validation import timing
from validation.timing import CALCULON, LARGE, LAYOUTS, SIZES

PAGE = """# Speed and memory

Written by `python -m validation.performance > docs/performance.md`. Times are CPU seconds, medians
where a row says so, on {cores} cores that are shared with others, {machine}, Python {python},
NumPy {numpy}. On another machine look at the ratios: `pytest -m benchmarks` holds them, each within
one run. [Speed of the engine](../validation/scale.md) compares SimPy's loop with a bare replay.

## What your own job costs

A job has an op for each kernel, and one for each message on each of its ranks: {per_layer:.0f} for
a microbatch of a dense layer with tensor parallelism, forward and backward, on every rank that is
simulated. Of ranks that are proven alike one is simulated (`simulation.ranks_simulated` and
`simulation.ops` of the summary), so that the number of GPUs seldom matters. An op costs

| part | us per op | |
|---|--:|---|
| building and pricing | {build:.2f} | templates of a layer, repeated |
| simulating, compiled | {compiled:.2f} | with the extra `fast`, from 200,000 ops on |
| simulating with SimPy | {simpy:.2f} | |
| figures of the summary | {summary:.2f} | |

and {bytes:.0f} bytes of memory, measured on the {ops:,.0f} ops of GPT 1T on 3,072 GPUs
(`gpt_1t_3072.toml`). Its `run --json` takes {whole:.1f} s.

## From a cold start

Median of {rounds} processes, commands in turn; the recipe is `korthikanti_22b_full.toml`.
Calculon's own example took {calculon} times as long as importing NumPy when both were run in turn.

{cold}

## Large clusters

Llama 3 8B and Mixtral 8x7B with 4 microbatches per replica on DGX H100. "Machine" is making the
cluster and its links, "proof" showing which ranks are alike, "whole" a cold `run --json`.

{large}

## Sweeps and traces

A further configuration of the dense job above on 64 GPUs costs a sweep {sweep:.2f} s, {rate:.1f}
configurations per second and core.

{traces}
"""


def cold() -> Table:
    """Return a row for each command."""
    took = timing.cold()
    unit = took["import numpy"]
    return table(
        took.items(),
        ("command", lambda row: f"`{row[0]}`"),
        ("CPU seconds", 1, ".2f"),
        ("of `import numpy`", lambda row: row[1] / unit, ".1f"),
        ("of Calculon", lambda row: row[1] / unit / CALCULON, ".2f"),
    )


def large() -> Table:
    """Return a row for each layout and number of GPUs."""
    jobs = [(layout, gpus) for layout in LAYOUTS for gpus in SIZES]
    return table(
        [(*job, timing.alone("proof", *job), timing.whole(*job)) for job in jobs],
        "job",
        ("GPUs", 1, ","),
        ("machine s", lambda row: row[2]["cluster_s"], ".2f"),
        ("proof s", lambda row: row[2]["seconds"], ".2f"),
        ("whole s", lambda row: row[3].seconds, ".2f"),
        ("MB", lambda row: row[3].bytes / 1e6, ".0f"),
    )


def traces() -> Table:
    """Return a row for each length of a trace."""
    lengths = (10_000, 40_000, 160_000)
    return table(
        [{"launches": count, **timing.analyzed(count)} for count in lengths],
        ("`analyze` of a trace", lambda _: "operators, launches and waits"),
        ("launches", "launches", ","),
        ("MB of the file", lambda row: row["size"] / 1e6, ".0f"),
        ("CPU seconds", "seconds", ".1f"),
        ("MB of memory", lambda row: row["bytes"] / 1e6, ".0f"),
    )


def page() -> str:
    """Measure everything and return the page."""
    of, job = (
        timing.alone("engines"),
        timing.child("-m", "traincast", "run", str(LARGE), "--json"),
    )
    sweep = timing.swept()["seconds"]
    each = {
        name: 1e6 * of[f"{name}_s"] / of["ops"]
        for name in ("build", "compiled", "simpy", "summary")
    }
    return PAGE.format(
        **each,
        ops=of["ops"],
        bytes=job.bytes / of["ops"],
        whole=job.seconds,
        per_layer=timing.per_layer(),
        cores=os.cpu_count(),
        machine=platform.machine(),
        python=platform.python_version(),
        numpy=np.__version__,
        rounds=timing.ROUNDS,
        calculon=CALCULON,
        cold=markdown(cold()),
        large=markdown(large()),
        sweep=sweep,
        rate=1 / sweep,
        traces=markdown(traces()),
    )


if __name__ == "__main__":
    print(page(), end="")
