"""Proposes a first recipe for a model on a machine: complete, commented, and one that runs.

The split is the smallest that fits by a rough count of bytes; it is a start to edit, not a search.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim.keys.descriptions import descriptions
from sim.keys.refusals import show
from sim.machine import topology
from sim.machine.cluster import load
from sim.recipe import config_json, legality, presets, recipe_file
from sim.recipe.recipe import MOST_SAMPLES, NOT_YET
from sim.recipe.refusals import SECTIONS

USUAL_SEQUENCE = 4096
SCHEMA = Path(__file__).parents[3] / "docs/schema/recipe.json"
"""The JSON schema of recipes in the project's tree; an installed package has none."""
FILL = 0.8  # share of a GPU's memory that the rough count may take


def propose(
    model: Path, machine: str, gpus: int | None, folder: Path, sequence: int | None = None
) -> dict[str, Any]:
    """Return a recipe's tables for a preset, or for a Hugging Face model, on a topology.

    Paths in it are relative to ``folder``. Without ``gpus``, it takes as many nodes as the model
    needs; without ``sequence``, samples of 4,096 tokens, or the most that the model takes. Raises
    InputError for a model that there is not, for one with experts or of convolutions, and when
    nothing fits.
    """
    source, stated, longest = _model(model, folder)
    if other := next((key for key in ("experts", "blocks") if stated.get(key)), None):
        raise InputError(f"{model} has {other}; init cannot split these yet; write the recipe")
    numbers = presets.complete({**stated, "sequence": sequence or min(longest, USUAL_SEQUENCE)})
    spec = topology.read(machine)
    node, memory = int(spec["node"]["gpus"]), float(spec["gpu"]["memory"])
    most = min(topology.MOST_GPUS, node * spec["fabric"].get("max_nodes", topology.MOST_GPUS))
    sizes = [gpus] if gpus else [n for k in range(11) if (n := node * 2**k) <= most] or [most]
    topology.room(spec, sizes[0])  # before all splits of too many are tried
    splits = (split for size in sizes for split in _splits(numbers, size, node))
    fits = (split for split in splits if _bytes(numbers, *split) <= FILL * memory)
    tp, pp, dp = next(fits, None) or list(_splits(numbers, sizes[-1], node))[-1]
    load(machine, tp * pp * dp)  # refuses a fabric that cannot be built
    is_file = "/" in machine or machine.endswith(".toml")
    layers = {"layers_per_stage": list(legality.even(numbers["layers"], pp))}
    return {
        "model": {**source, "sequence": numbers["sequence"]},
        "cluster": {
            "topology": _relative(Path(machine), folder) if is_file else machine,
            "gpus": tp * pp * dp,
        },
        "parallelism": {
            "tp": tp,
            "pp": pp,
            "sp": tp > 1 and numbers["sequence"] % tp == 0,
            "zero": int(dp > 1),
            "overlap_param_gather": dp > 1,
        },
        "schedule": layers if numbers["layers"] % pp else {},
        "training": {"global_batch": dp * min(max(8, 4 * pp), MOST_SAMPLES // dp)},
    }


def _model(model: Path, folder: Path) -> tuple[dict[str, str], dict[str, Any], int]:
    """Return the key that names a model in a recipe, its numbers, and its longest sequence."""
    name = str(model)
    there = os.path.exists(model)  # noqa: PTH110  any text
    if not there and model.parent == Path() and model.suffix != ".json":
        stated = presets.preset(name, "or give the path of a config.json")
        return {"preset": name}, stated, stated.get("sequence", USUAL_SEQUENCE)
    longest = config_json.longest(model) or USUAL_SEQUENCE
    return {"hf": _relative(model, folder)}, recipe_file.hugging_face(model), longest


def _longest(model: dict[str, Any], folder: Path) -> str:
    """Return the most tokens per sample that a config.json allows, as the end of a comment."""
    if "hf" not in model:
        return ""
    file = Path(os.path.normpath(folder / model["hf"]))  # the folder may not be there yet
    most = config_json.longest(file)
    return f"; {file.name} allows {most:,}" if most else ""


def _splits(numbers: dict[str, Any], gpus: int, node: int) -> Iterator[tuple[int, int, int]]:
    """Yield the legal (tp, pp, dp), the least split first; tensor parallelism stays in a node."""
    sizes = [numbers["heads"], numbers["kv_heads"], numbers["ffn"], gpus]
    tensor = [t for t in range(1, node + 1) if node % t == 0 and not any(s % t for s in sizes)]
    split = [
        (tp * pp, pp, tp)
        for tp in tensor
        for pp in range(1, min(numbers["layers"], gpus // tp) + 1)
        if gpus % (tp * pp) == 0
    ]
    for share, pp, tp in sorted(split):
        yield tp, pp, gpus // share


def _bytes(numbers: dict[str, Any], tp: int, pp: int, dp: int) -> float:
    """Return roughly the most bytes that a rank holds.

    As in Megatron with ZeRO-1, a parameter takes 6 + 12/dp bytes. Activations take 34 bytes per
    token, hidden unit and layer (Korthikanti et al. 2022, Equation 2 without its attention term),
    and the first stage holds those of pp microbatches. Logits take 8 bytes per token and vocabulary
    entry.
    """
    hidden, heads = numbers["hidden"], numbers["heads"] + 2 * numbers["kv_heads"]
    attention = (heads + numbers["heads"]) * numbers["head_dim"] * hidden
    layer = attention + (3 if numbers["gated"] else 2) * hidden * numbers["ffn"]
    tables = numbers["vocab"] * hidden * (1 if numbers["tied"] or pp > 1 else 2)
    held = -(-numbers["layers"] // pp)
    parameters: float = (held * layer + tables) / tp
    tokens = numbers["sequence"]
    activations: float = (34 * hidden * held * pp + 8 * numbers["vocab"]) * tokens / tp
    return parameters * (6 + 12 / dp) + activations


def text(data: dict[str, Any], folder: Path) -> str:
    """Return the recipe as TOML: every key, what it means, the model's numbers as comments."""
    recipe = recipe_file.parse(data, folder)
    out = [*_schema(folder), "# A recipe for traincast; change what you like.", ""]
    more = {"model.sequence": _longest(data["model"], folder)}
    for name in SECTIONS:
        section = getattr(recipe, name)
        lines = [*_lines(name, section, data.get(name, {}), more)]
        out += [f"# {section.__doc__}", f"[{name}]", *lines, ""] if lines else []
    return "\n".join(out)


def _schema(folder: Path) -> list[str]:
    """Return the line by which editors find the schema, if recipe and schema move together."""
    near = SCHEMA.is_file() and folder.resolve().is_relative_to(SCHEMA.parents[2])
    return [f"#:schema {_relative(SCHEMA, folder)}", ""] if near else []


def _lines(name: str, section: Any, given: dict[str, Any], more: dict[str, str]) -> Iterator[str]:
    """Yield a line per key; what follows from the model's file or other keys is commented out.

    ``more`` has what is to be said of a key besides its description.
    """
    fields, meaning = type(section).model_fields, descriptions(type(section))
    pairs = {key: given.get(key, getattr(section, key)) for key in fields}
    for key, value in pairs.items():
        if value is None:
            continue
        written = f"{key} = {show(value)}"
        if key not in given and fields[key].default is None:  # it follows from the others
            written = f"# {written}"
        only = NOT_YET.get(f"{name}.{key}")
        limit = f" (only {' or '.join(map(show, only))} so far)" if only and not only[2:] else ""
        about = " ".join(meaning.get(key, "").split())
        yield f"{written:<28}  # {about}{limit}{more.get(f'{name}.{key}', '')}"


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
