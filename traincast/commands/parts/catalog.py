"""What there is to choose from: names, and what each one is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import schedules
import topologies
from schedules.input_error import InputError
from sim import strategies
from sim.model import kinds
from sim.recipe import presets
from traincast.commands.parts.values import TIMES

KINDS = ("models", "layers", "topologies", "schedules", "strategies", "analyses")

STRATEGIES = {
    "parallelism.cp": ("context parallel", "this many GPUs share each sequence"),
    "parallelism.pp": ("pipeline parallel", "this many ranks hold the layers one after another"),
    "schedule.name": (
        "pipeline schedule",
        "the order of forwards and backwards; see traincast list schedules",
    ),
    "schedule.csv": ("an order of your own", "it is read from a file in torch's CSV"),
    "schedule.chunks": ("interleaving", "each pipeline rank holds several stages"),
    "schedule.layers_per_stage": ("uneven stages", "how many layers each stage holds"),
    "parallelism.p2p": (
        "pipeline streams",
        "whether sends and receives have a stream per direction, per pair, or run in batches",
    ),
    "parallelism.overlap_p2p": (
        "pipeline overlap",
        "sends and receives run beside kernels",
    ),
    "parallelism.dp": ("data parallel", "this many replicas share the batch and sum gradients"),
    "parallelism.zero": (
        "ZeRO",
        "1 splits the optimizer state over the replicas, 2 also gradients, 3 also parameters",
    ),
    "parallelism.optimizer_instances": (
        "optimizer instances",
        "ZeRO 1 inside groups of replicas; gradients are summed across the groups too",
    ),
    "parallelism.overlap_grad_reduce": (
        "gradient overlap",
        "gradients are reduced bucket by bucket while the backward goes on",
    ),
    "parallelism.bucket_mb": ("gradient buckets", "how many MB of gradients are reduced at once"),
    "parallelism.first_bucket_mb": ("first bucket", "its own size, as torch's DDP has it"),
    "parallelism.gradient_as_bucket_view": (
        "bucket views",
        "false: gradients are copied into their bucket and back",
    ),
    "parallelism.overlap_param_gather": (
        "parameter overlap",
        "ZeRO's parameters are gathered beside the first forwards",
    ),
}
"""Keys of a recipe that split or overlap a job: the name of each strategy, and what it does."""
HEADINGS = {"gpu": "GPU", "gpus_per_node": "per node", "network_per_gpu": "NIC GB/s per GPU"}
HEADINGS |= {"most_gpus": "most GPUs", "vocab": "vocabulary"}


def entries(kind: str) -> list[dict[str, Any]]:
    """List the models, layers, ..., a row each; all rows have a ``name``.

    >>> [row["name"] for row in entries("schedules")][:3]
    ['dualpipe', 'dualpipe_v', 'gpipe']
    """
    match kind:
        case "models":
            return [_model(name) for name in presets.names()]
        case "layers":
            return [_layer(name, key) for key in kinds.ROLES for name in kinds.names(key)]
        case "topologies":
            return [_topology(name) for name in topologies.names()]
        case "schedules":
            return _schedules()
        case "strategies":
            return [
                {"name": name, "key": key, "about": about}
                for key, (name, about) in _strategies().items()
            ]
        case "analyses":
            from sim.analysis import analyses

            return [
                {"name": of.name, "needs": list(of.needs[1:]), "about": of.about}
                for of in analyses().values()
            ]
    raise InputError(f"list {kind!r}: there are {', '.join(KINDS)}")


def _strategies() -> dict[str, tuple[str, str]]:
    found = dict(STRATEGIES)
    for more in strategies.declared("CATALOGUE"):
        found |= more
    return found


def _model(name: str) -> dict[str, Any]:
    from sim.model.sizes import model_of, total_parameters

    numbers = presets.complete(presets.preset(name))
    sizes = {key: numbers.get(key) for key in ("layers", "hidden", "heads", "vocab")}
    return {"name": name, **sizes, "parameters": total_parameters(model_of(numbers))}


def _layer(name: str, key: str) -> dict[str, str]:
    about = _sentence(kinds.LAYERS / f"{name}.py").replace("``", "")
    return {"name": name, "key": f"model.{key}", "about": about}


def _topology(name: str) -> dict[str, Any]:
    from sim.machine import topology

    spec = topology.read(name)
    node, fabric = spec["node"], spec["fabric"]
    most = fabric.get("max_nodes")
    return {
        "name": name,
        "gpu": spec["gpu"]["name"],
        "gpus_per_node": node["gpus"],
        "network_per_gpu": node["nic"]["bandwidth"] * node["nic"]["count"] / node["gpus"],
        "fabric": fabric["kind"],
        "most_gpus": most and most * node["gpus"],
        "borrowed": dict(spec["borrowed"]),
    }


def _schedules() -> list[dict[str, Any]]:
    """Return what each schedule takes: its options, and times if its order is searched."""
    folder = Path(schedules.__file__ or "").parent
    return [
        {
            "name": name,
            "stages": schedules.stages_per_rank(name),
            "chunks": "chunks" in schedules.options(name),
            "group": "group" in schedules.options(name),
            "searched": schedules.takes_times(name),
            "options": _options(name),
            "about": _sentence(folder / f"{name}.py"),
        }
        for name in schedules.names()
    ]


def _options(name: str) -> list[str]:
    """Return what a schedule takes; seconds of F, I, W and p2p, and its policy, count as times.

    >>> _options("zb_1p"), _options("pipedream")
    (['memory', 'exact', 'objective', 'times'], ['batch'])
    """
    given = (*TIMES, "policy")
    takes = ("times" if key in given else key for key in schedules.options(name))
    return list(dict.fromkeys(sorted(takes, key=lambda key: key == "times")))


def rows(kind: str, found: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the same rows for people: headings and cells."""
    if kind == "strategies":
        return ["recipe key", "strategy"], [
            [row["key"], f"{row['name']}: {row['about']}"] for row in found
        ]
    if kind == "schedules":
        return ["schedule", "takes", "about"], [
            [
                row["name"],
                ", ".join(row["options"]) or "-",
                row["about"].partition(" (")[0].rstrip("."),
            ]
            for row in found
        ]
    if kind == "layers":
        return ["kind", "recipe key", "about"], [[*row.values()] for row in found]
    if kind == "analyses":
        return ["analysis", "also needs", "about"], [
            [row["name"], ", ".join(row["needs"]) or "-", row["about"]] for row in found
        ]
    keys = [key for key in found[0] if key != "borrowed"] if found else []
    return [HEADINGS.get(key, key) for key in keys], [
        [_cell(key, row[key]) for key in keys] for row in found
    ]


def uncalibrated(found: list[dict[str, Any]]) -> str:
    """Name the topologies whose kernels are priced with the constants of another GPU.

    >>> uncalibrated([{"name": "x", "borrowed": {"gemm": "z"}}, {"name": "y", "borrowed": {}}])
    'uncalibrated (kernels or links have the constants of others): x'
    """
    names = ", ".join(row["name"] for row in found if row.get("borrowed"))
    return f"uncalibrated (kernels or links have the constants of others): {names}" if names else ""


def _cell(key: str, value: object) -> str:
    match key, value:
        case _, bool():
            return "yes" if value else "-"
        case "parameters", int():
            return f"{value / 1e9:,.1f} billion" if value >= 5e7 else f"{value / 1e6:.1f} million"
        case "network_per_gpu", float():
            return f"{value / 1e9:.4g}"
        case _, int():
            return f"{value:,}"
        case "hidden" | "heads" | "vocab", None:
            return "-"
        case _, None:
            return "any"
    return str(value)


def _sentence(file: Path) -> str:
    """Return the first line of a module's docstring; the module is not imported."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return text.partition("\n")[0]
