"""Reads the jobs that others ran in several layouts, and the recipe of each layout.

They stand beside the project, in ``../shared/data``: vTrain's runs (``vtrain``), and Hugging Face's
sweep, BigScience's and Megatron-Bridge's (``published``).
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from validation import memory
from validation.tables import RECIPES

DATA = Path(__file__).parents[2] / "shared" / "data"
FEWEST = 4
"""The fewest layouts of a job that is compared."""


class Layout(NamedTuple):
    """A way in which a job ran."""

    name: str
    base: Mapping[str, Any] | str  # a recipe, or the name of its file
    over: Mapping[str, Any]  # values over those of the file, by dotted key
    seconds: float  # of a step, measured; the median where the layout ran more than once

    def recipe(self) -> Recipe:
        """Return its recipe."""
        if isinstance(self.base, str):
            return recipe_file.load(RECIPES / f"{self.base}.toml", self.over)
        return recipe_file.parse(self.base)


class Job(NamedTuple):
    """A job, and the layouts in which it was measured."""

    name: str
    layouts: Sequence[Layout]


def grouped(rows: Iterable[tuple[str, Layout]]) -> list[Job]:
    """Return the jobs with four layouts or more, in the order of their first rows."""
    jobs = defaultdict[str, dict[Hashable, list[Layout]]](lambda: defaultdict(list))
    for job, layout in rows:
        jobs[job][layout.name].append(layout)
    return [
        Job(name, [_once(runs) for runs in layouts.values()])
        for name, layouts in jobs.items()
        if len(layouts) >= FEWEST
    ]


def _once(runs: Sequence[Layout]) -> Layout:
    return runs[0]._replace(seconds=median(run.seconds for run in runs))


def _split(tp: int, pp: int, dp: int, micro: int) -> str:
    return f"tp {tp} pp {pp} dp {dp}, micro-batch {micro}"


def vtrain(kind: str) -> list[Job]:
    """Return vTrain's jobs: on one node ("single"), or on several ("multi")."""
    with (DATA / "vtrain" / f"ground_truth_{kind}.csv").open() as file:
        return grouped(_vtrain(row, kind) for row in csv.DictReader(file))


def _vtrain(row: Mapping[str, str], kind: str) -> tuple[str, Layout]:
    numbers = map(int, [*row.values()][-11:-1])
    gpus, batch, micro, hidden, heads, layers, sequence, tp, dp, pp = numbers
    over = {
        "model.layers": layers, "model.hidden": hidden, "model.heads": heads,
        "model.sequence": sequence, "cluster.gpus": gpus, "parallelism.tp": tp,
        "parallelism.pp": pp, "parallelism.dp": dp, "training.micro_batch": micro,
        "training.global_batch": batch,
        **({"simulation.host": "megatron"} if kind == "single" else {}),
    }  # fmt: skip
    job = f"GPT, {layers} layers of {hidden}, {gpus} A100, batch {batch:,}"
    seconds = float(row["iteration time (ms)"]) / 1e3
    return job, Layout(_split(tp, pp, dp, micro), "vtrain_gpt", over, seconds)


def bloom() -> list[Job]:
    """Return the jobs of BigScience's search whose layers and seconds are stated."""
    rows = _published("bloom_a100")
    known = (row for row in rows if row["model"]["layers"] and "512" not in row["notes"])
    return grouped(_bloom(row) for row in known if row["measured"].get("iteration_time_s"))


def _bloom(row: Mapping[str, Any]) -> tuple[str, Layout]:
    model, split, gpus = row["model"], row["parallelism"], row["hardware"]["num_gpus"]
    tp, pp, dp = map(split.get, ("tp", "pp", "dp"))
    micro, layers = row["micro_batch"], model["layers"]
    stages = _stages(layers, pp, "embedding and head count" in row["notes"])
    bits = "fp16" if row["dtype"] == "fp16" else "bf16"
    over = {
        **{f"model.{key}": model[key] for key in ("layers", "hidden", "heads", "vocab")},
        "cluster.gpus": gpus, "parallelism.tp": tp, "parallelism.pp": pp, "parallelism.dp": dp,
        "schedule.layers_per_stage": stages, "training.micro_batch": micro,
        "training.global_batch": row["global_batch"], "training.dtype": bits,
        "training.grad_dtype": "fp16" if bits == "fp16" else "fp32",
    }  # fmt: skip
    job = f"{model['name']}, {layers} layers of {model['hidden']}, {model['heads']} heads"
    job += f", {gpus} A100, batch {row['global_batch']:,}, {bits}"
    name = f"{_split(tp, pp, dp, micro)}, {stages[0]} to {stages[-1]} layers"
    return job, Layout(name, "bloom_176b", over, row["measured"]["iteration_time_s"])


def _stages(layers: int, pp: int, with_ends: bool) -> list[int]:
    """Return the layers of each stage; ``with_ends`` embedding and head count as one each."""
    each = -(-(layers + 2 * with_ends) // pp)
    first = each - with_ends
    middle = [each] * (pp - 2)
    return [first, *middle, layers - first - sum(middle)]


def nanotron() -> list[Job]:
    """Return the jobs of Hugging Face's sweep, of rows after the repair of pipelines."""
    rows = [row for row in _published("hf_ultrascale_h100") if row["after_pp_fix"]]
    return grouped(map(_nanotron, rows))


def _nanotron(row: Mapping[str, Any]) -> tuple[str, Layout]:
    model, split, gpus = row["model"], row["parallelism"], row["hardware"]["num_gpus"]
    base = memory.recipe(memory.flat(row))
    base["cluster"]["topology"] = "aws_p5"
    base["parallelism"] |= {"p2p": "batched"}
    base["simulation"] = {"host": "eager"}
    tp, pp, dp = map(split.get, ("tp", "pp", "dp"))
    name = f"{_split(tp, pp, dp, row['micro_batch'])}, ZeRO-{split['zero_stage']}"
    name += ", sp" if split["sequence_parallel"] and tp > 1 else ""
    job = f"{model['name']}, {model['layers']} layers of {model['hidden']}, {gpus} H100"
    tokens = row["global_batch"] * model["seq"]
    seconds = tokens / gpus / row["measured"]["tokens_per_s_per_gpu"]
    return f"{job}, batch {row['global_batch']:,}", Layout(name, base, {}, seconds)


def bridge() -> int:
    """Return the most layouts that Megatron-Bridge's tables have of one job."""
    jobs = defaultdict[object, set[str]](set)
    for row in _published("megatron_bridge_perf"):
        model, machine = row["model"], row["hardware"]
        key = (
            machine["gpu"], machine["num_gpus"], model["name"], model["seq"],
            row["global_batch"], row["dtype"],
        )  # fmt: skip
        jobs[key].add(str((row["parallelism"], row["micro_batch"], row["recompute"])))
    return max(map(len, jobs.values()))


def _published(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((DATA / "published" / f"{name}.json").read_text())
    return rows
