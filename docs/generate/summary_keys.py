"""The keys of summary.json with unit and meaning, and the summary of a run as a sample."""

from __future__ import annotations

import json
from pathlib import Path

from sim.report.definitions import CAUSES, FIGURES, INTERVAL, MEMORY, PATH, SENT, TIMES, cause
from sim.runs.run import run
from sim.table import markdown, table

SAMPLE = Path(__file__).parents[2] / "validation/recipes/korthikanti_22b_full.toml"
_UNITS = {"tflops_per_gpu": "TFLOP/s", "samples_per_s": "1/s", "tokens_per_s": "1/s"}
_FIRST = {
    f"bubble.{key}" if key.startswith("idle") else key: (_UNITS.get(key, unit), meaning)
    for key, (_, unit, meaning) in FIGURES.items()
}
_BUBBLE = {f"bubble.by_cause_s.{name}": ("s", meaning) for name, meaning in CAUSES.items()}
_TIMES = {
    f"time_s.{key}{'' if key in ('compute', 'empty') else '.DIMENSION'}": ("s", meaning)
    for key, meaning in TIMES.items()
}
_MEMORY_UNITS = {"seconds": "s", "fragmentation": "share", "stands_for": "ranks"}
_MEMORY = {
    f"memory[].{key}": (_MEMORY_UNITS.get(key, "bytes"), meaning) for key, meaning in MEMORY.items()
}
_NEAREST = {
    "run": ("", "A measured run that is like this job: model, parameters, GPUs."),
    "row": ("", "Its row in validation/results.md, which `validate --explain` takes."),
    "family": ("", "The family of runs that it is in, in validation/results.md."),
    "error": ("share", "Predicted over measured step time of that run, less 1."),
    "distance": ("", "How unlike the two are, as described below."),
}
KEYS: dict[str, tuple[str, str]] = {
    **_FIRST,
    "interval_s[]": ("s", INTERVAL),
    **{f"nearest_measured[].{key}": said for key, said in _NEAREST.items()},
    "bubble.by_cause_s.exposed_DIMENSION": ("s", cause("exposed_DIMENSION")),
    **_BUBBLE,
    **_TIMES,
    "bytes_sent.DIMENSION.RANK": ("bytes", SENT),
    "memory[].rank": ("", "The rank that is simulated."),
    **_MEMORY,
    "memory[].allocated_bytes": ("bytes", "The allocator's blocks in use at its peak, rounded up."),
    "memory[].by_category.CATEGORY": ("bytes", "What the rank holds at its peak, by what it is."),
    "memory[].at_peak.op": ("", "The op with which the peak is reached."),
    "memory[].at_peak.live[]": (
        "bytes",
        "The eight largest rows of what is live besides what stays, by `category`, `stage`, "
        "`microbatch` and `layers`; null where a row is of none or of several.",
    ),
    "memory[].at_peak.causes[]": ("", "Sentences that say why so much is live."),
    "host_memory[].rank": ("", "A pipeline rank whose host keeps something for it."),
    "host_memory[].bytes": ("bytes", "What the host keeps for that rank."),
    "host_memory[].by_category.CATEGORY": ("bytes", "The same, by what it is."),
    "critical_path_s.KIND": ("s", PATH),
    "steps.ends_s[]": ("s", "The end of each step of a run of several."),
    "steps.steady": ("steps", "Steps of the steady state, of which all figures are the mean."),
    "steps.staleness.RANK": ("updates", "How old a rank's weights are in an unflushed pipeline."),
    "pipeline.schedule": ("", "The schedule, where there is a pipeline."),
    "pipeline.p2p": ("", "The streams of its messages: direction, pair or batched."),
    "pipeline.layers_per_stage[]": ("layers", "The layers of each stage, first to last."),
    "machine.topology": ("", "The name of the topology."),
    "machine.calibrated[]": (
        "",
        "Families of constants that were measured on this GPU or its links: gemm, attention, "
        "memory_kernels, collectives.",
    ),
    "machine.borrowed.FAMILY": ("", "The topology that gives the constants of another family."),
    "host.prices": ("", "The prices at which the host issues ops: those of the recipe, or usual."),
    "host.kernel_s": ("s", "Mean of the kernels of the rank that waits most for its host."),
    "host.launch_s": ("s", "The host's time for each of these kernels, with the ops in between."),
    "host.simulated": ("", "Whether the step was simulated with the host."),
    "simulation.ops": ("ops", "Ops of the graph that was simulated."),
    "simulation.ranks_simulated": ("ranks", "Ranks that were simulated, each for all like it."),
    "simulation.folded[]": ("", "The axes along which one rank stands for all."),
    "simulation.classes": (
        "",
        "Where slow ranks or links part the pipelines: how many classes of them there are, of "
        "each of which one is simulated.",
    ),
    "simulation.folded_later_s": ("s", "How much too long the step may be for that, if at all."),
    "simulation.replicas_drawn": (
        "replicas",
        "Where noise is on a sample of replicas: how many were simulated, the one that stands for "
        "the rest among them.",
    ),
    "simulation.noise_error_s": (
        "s",
        "The standard deviation of the step's time, for the replicas that are not simulated.",
    ),
    "simulation.engine": ("", "The engine that ran the graph: simpy or compiled, to equal bits."),
    "simulation.engine_because": ("", "Why it is that engine."),
    "simulation.seed": ("", "The seed of everything random."),
    "simulation.version": ("", "The version of traincast."),
    "simulation.schema": ("", "Counted up when a key changes its meaning."),
    "simulation.wall_s": (
        "s",
        "Seconds that it all took; null in the file, so that equal runs write equal bytes.",
    ),
}
"""By key: unit and meaning. Capitals stand for a name, [] for the entries of a list."""


def text() -> str:
    """Return the table of all keys."""
    rows = [(f"`{key}`", *said) for key, said in KEYS.items()]
    return markdown(table(rows, "key", "unit", "meaning", left=True))


def sample() -> str:
    """Return the summary of a run, laid out to be read."""
    summary = json.loads(json.dumps(run(SAMPLE).summary))
    summary["simulation"]["wall_s"] = None
    return f"```json\n{_laid_out(summary)}\n```"


def _laid_out(value: object, indent: int = 0) -> str:
    """Return JSON with a line for each entry that is not short."""
    short, pad = json.dumps(value), " " * (indent + 2)
    if len(short) < 90 - indent or not isinstance(value, dict | list) or not value:
        return short
    if isinstance(value, dict):
        rows = [f"{pad}{json.dumps(k)}: {_laid_out(v, indent + 2)}" for k, v in value.items()]
        return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"
    rows = [pad + _laid_out(item, indent + 2) for item in value]
    return "[\n" + ",\n".join(rows) + "\n" + " " * indent + "]"
