"""Measures traincast's own time and memory: cold commands, proofs of folding, engines, traces.

:mod:`validation.performance` makes a page of it, and ``pytest -m benchmarks`` holds its ratios.
Times are CPU seconds, those of processes with all that they start; memory is the peak of a process.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any, NamedTuple

import tomli_w

from sim.graph import Communication
from sim.runs import fold
from sim.runs.run import build, job_of, load, prepare, run
from sim.runs.shared import cluster_of
from validation.engines import in_turn
from validation.long_trace import trace

RECIPES = Path(__file__).parent / "recipes"
RECIPE, LARGE = RECIPES / "korthikanti_22b_full.toml", RECIPES / "gpt_1t_3072.toml"
ROUNDS = 5
SIZES = (512, 4_096, 16_384, 131_072)
TOPOLOGY = 'name = "large"\nbase = "dgx_h100"\n[fabric]\nmax_nodes = 16384\n'
"""As many DGX H100 as are ever simulated, wired as the smaller ones."""
DENSE = {"tp": 8, "sp": True, "pp": 4, "zero": 1}
DENSE_JOB = "dense, tp 8, pp 4, ZeRO-1"
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    DENSE_JOB: ("llama3-8b", DENSE),
    "FSDP2": ("llama3-8b", {"fsdp": {"kind": "fsdp2"}}),
    "HSDP, shards of 8": ("llama3-8b", {"fsdp": {"kind": "fsdp2", "shard": 8}}),
    "experts, ep 8": ("mixtral-8x7b", {"pp": 4, "ep": 8, "zero": 1}),
}
COMMANDS = {
    "import numpy": ["-c", "import numpy"],
    "--help": ["-m", "traincast", "--help"],
    "list models": ["-m", "traincast", "list", "models"],
    "check": ["-m", "traincast", "check", str(RECIPE), "--json"],
    "run --json": ["-m", "traincast", "run", str(RECIPE), "--json"],
}
CALCULON = 3.8
"""CPU seconds of Calculon's own example (bin/calculon llm, at caa4b11) over those of importing
NumPy: the median of four comparisons in turn, 3.7 to 4.5."""


class Child(NamedTuple):
    """What a process took."""

    seconds: float
    bytes: int
    printed: str


def child(*arguments: str) -> Child:
    """Run Python with these arguments, and return what it took. Raises RuntimeError if it fails."""
    own = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen([sys.executable, *arguments], stdout=out, env=own)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        printed = out.read()
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}")
    return Child(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, printed)


def cold(rounds: int = ROUNDS) -> dict[str, float]:
    """Return the median seconds of each command from a cold start, taken in turn."""
    took: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):  # the first writes Python's bytecode
        for name, arguments in COMMANDS.items():
            took[name].append(child(*arguments).seconds)
    return {name: median(of[1:]) for name, of in took.items()}


def recipe(layout: str, gpus: int, folder: Path) -> Path:
    """Write a recipe of a layout, with 4 microbatches on any number of GPUs; return its path."""
    preset, split = LAYOUTS[layout]
    (folder / "large.toml").write_text(TOPOLOGY)
    dp = gpus // (split.get("tp", 1) * split.get("pp", 1))
    sections = {
        "model": {"preset": preset, "sequence": 4096},
        "cluster": {"topology": "./large.toml", "gpus": gpus},
        "parallelism": split,
        "training": {"global_batch": 4 * dp},
        "simulation": {"spread": False},
    }
    path = folder / "recipe.toml"
    path.write_text(tomli_w.dumps(sections))
    return path


def proof(layout: str, gpus: int) -> dict[str, float]:
    """Return the seconds in which the folding of a job is proven, and its bytes; in this process.

    ``cluster_s`` is for making the machine itself.
    """
    with tempfile.TemporaryDirectory() as folder:
        of = load(recipe(layout, gpus, Path(folder)))
        begin = process_time()
        cluster = cluster_of(of)
        cluster.limiting  # noqa: B018  (it is remembered)
        made = process_time()
        job = job_of(of, cluster)
        lanes = next(fold.candidates(job))
        works = [work for work in build(job, lanes).works if isinstance(work, Communication)]
        before, held = process_time(), resident()
        found = fold.loads(cluster, job, lanes.atoms, works)
        took = process_time() - before
    return {
        "seconds": took,
        "bytes": resident() - held,
        "cluster_s": made - begin,
        "proven": float(found is not None),
    }


def resident() -> int:
    """Return the peak resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def whole(layout: str, gpus: int) -> Child:
    """Return what ``run --json`` of a layout takes, from a cold start."""
    with tempfile.TemporaryDirectory() as folder:
        return child("-m", "traincast", "run", str(recipe(layout, gpus, Path(folder))), "--json")


def analyzed(launches: int) -> dict[str, float]:
    """Return the seconds, the bytes and the size of a trace that ``analyze --json`` reads."""
    with tempfile.TemporaryDirectory() as folder:
        file = trace(Path(folder) / "trace.json", launches)
        took = child("-m", "traincast", "analyze", str(file), "--json")
        return {"seconds": took.seconds, "bytes": took.bytes, "size": file.stat().st_size}


def engines(rounds: int = 3) -> dict[str, float]:
    """Return the seconds of the large recipe: building and pricing, both engines, the summary."""
    of_large = load(LARGE)
    cluster = cluster_of(of_large)
    job = job_of(of_large, cluster)
    begin = process_time()
    prepare(job, cluster)
    built = process_time() - begin
    result = run(LARGE, {"simulation.engine": "compiled"})  # which may compile it first
    graph = result.timeline.graph
    took = in_turn(graph, result.machine, rounds)
    begin = process_time()
    _ = result.summary
    out = {"build_s": built, "summary_s": process_time() - begin, "ops": float(len(graph))}
    return out | {f"{engine}_s": seconds for engine, seconds in took.items()}


def swept(configurations: int = 13) -> dict[str, float]:
    """Return the seconds that each further configuration of a 64-GPU job costs a sweep."""
    took = []
    with tempfile.TemporaryDirectory() as folder:
        of = str(recipe(DENSE_JOB, 64, Path(folder)))
        for n in (1, configurations):
            vary = ",".join(str(10 + k) for k in range(n))
            out = str(Path(folder) / f"{n}.parquet")
            more = ["--vary", f"parallelism.bucket_mb={vary}", "--jobs", "1", "--out", out]
            took.append(child("-m", "traincast", "sweep", of, *more, "--json").seconds)
    return {"seconds": (took[1] - took[0]) / (configurations - 1)}


def alone(case: str, *arguments: object) -> dict[str, float]:
    """Return what a function of this module returns in a process of its own."""
    call = f"from validation import timing as p; p.say(p.{case}(*{arguments!r}))"
    found: dict[str, float] = json.loads(child("-c", call).printed)
    return found


def per_layer() -> float:
    """Return the ops of a microbatch per layer of a dense job, forward and backward."""
    ops = []
    with tempfile.TemporaryDirectory() as folder:
        path = recipe(DENSE_JOB, 32, Path(folder))
        for layers in (4, 8):
            over = {"model.layers": layers, "training.global_batch": 1, "parallelism.pp": 1}
            job = job_of(load(path, {**over, "cluster.gpus": 8}))
            ops.append(len(build(job, next(fold.candidates(job)))))
    return (ops[1] - ops[0]) / 4


def say(found: object) -> None:
    """Print figures as JSON."""
    print(json.dumps(found))
