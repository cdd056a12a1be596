"""Which job a recipe describes: reads the file, fills in defaults and refuses what is wrong.

Every refusal is an InputError of one sentence that names the key, what was found and what to do.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError

from schedules.input_error import InputError
from schedules.user_code import is_path, module
from sim import strategies
from sim.files import regular
from sim.keys.descriptions import describe
from sim.keys.refusals import brief, show
from sim.machine import host_prices
from sim.recipe import (
    config_json,
    legality,
    messages,
    mixtures,
    order_file,
    presets,
    sources,
    switches,
    translate,
)
from sim.recipe.recipe import NOT_YET, ModelSection, Recipe
from sim.recipe.refusals import SECTIONS, sentence, unknown
from sim.recipe.sections import PerturbationSection
from sim.recipe.translate.fates import Ignored

_ROW = re.compile(r"perturbations\[([0-9]{1,3})\]\.(\w+)")


def load(path: str | Path, overrides: Mapping[str, object] | None = None) -> Recipe:
    """Return the complete job of a recipe file, with overrides such as ``{"parallelism.tp": 4}``.

    An override of None leaves the key out. Paths in the recipe are relative to the file. Raises
    InputError for a recipe that describes no job.
    """
    return parse(read(Path(path)), Path(path).parent, overrides)


def ignored(path: str | Path, overrides: Mapping[str, object] | None = None) -> dict[str, Ignored]:
    """Return what a recipe names and does not use, by the file it is in.

    That is arguments, and the parts of a model beside its language model. Raises InputError for a
    recipe that cannot be read.
    """
    data, folder = _put(read(Path(path)), overrides or {}), Path(path).parent
    found = translate.merge(data, folder)[1]
    model = data.get("model")
    file = model.get("hf") if isinstance(model, dict) else None
    parts = config_json.left_out(folder / file) if isinstance(file, str) else {}
    return found | ({str(file): Ignored(left_out=parts)} if parts else {})


def gives(path: str | Path, key: str, overrides: Mapping[str, object] | None = None) -> bool:
    """Return whether a recipe, or a file that it names, has a key such as ``parallelism.tp``.

    Raises InputError for a recipe that cannot be read.
    """
    data, _ = translate.merge(_put(read(Path(path)), overrides or {}), Path(path).parent)
    section, _, name = key.partition(".")
    return name in data.get(section, {})


def read(path: Path) -> dict[str, Any]:
    """Return a recipe as it is written, or what another file or a preset's name means as one.

    Raises InputError for a file that cannot be read.
    """
    return sources.tables(path)


def parse(
    data: Mapping[str, Any],
    folder: Path = Path(),
    overrides: Mapping[str, object] | None = None,
) -> Recipe:
    """Return the complete job of a recipe that has been read already.

    Paths in it are relative to ``folder``. Raises InputError for a recipe that describes no job.

    >>> model = {"preset": "gpt-22b"}
    >>> cluster = {"topology": "dgx_a100", "gpus": 16}
    >>> recipe = parse({"model": model, "cluster": cluster, "training": {"global_batch": 32}})
    >>> recipe.parallelism.dp, recipe.microbatches, recipe.model.ffn
    (16, 2, 24576)
    """
    said = written(data, folder, overrides or {})
    _simulated(said)
    recipe = _complete(said, folder)
    legality.check(recipe)
    order_file.check(recipe)
    return recipe


def written(data: Mapping[str, Any], folder: Path, overrides: Mapping[str, object]) -> Recipe:
    """Return what a recipe says, without what follows from it; some of it may be no legal job.

    Raises InputError for an unknown key, and for a value that its key never takes.
    """
    named, _ = translate.merge(_put(data, overrides), folder)
    over = {key: value for key, value in overrides.items() if key != translate.ALLOW}
    return _validate(_put(named, switches.follow(over)))


def dump(recipe: Recipe) -> str:
    """Return the complete recipe as TOML; loading that gives an equal recipe."""
    sections = recipe.model_dump(mode="json", exclude_none=True)
    return tomli_w.dumps({name: keys for name, keys in sections.items() if keys})


def hugging_face(path: Path) -> dict[str, Any]:
    """Return the numbers of a Hugging Face config.json in a recipe's words.

    Raises InputError, which names file and key, for numbers that no model can have.
    """
    numbers = config_json.hugging_face(path)
    try:
        ModelSection.model_validate(numbers)
    except ValidationError as error:
        said = sentence(error, "model", config_json.spelling(path))
        file = config_json.config_file(path)
        raise InputError(f"{file}: {said}") from None
    return numbers


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of recipes, for editors."""
    schema = Recipe.model_json_schema()
    describe(schema)
    schema["properties"] |= translate.SCHEMA
    of_its_own = {"required": [name for name in schema["required"] if name != "cluster"]}
    schema["anyOf"] = [of_its_own, *({"required": [name]} for name in translate.NAMES)]
    return schema | {"required": ["cluster"]}


def setting(
    text: str, option: str = "--set", example: str = "parallelism.tp=4"
) -> tuple[str, object]:
    """Return key and typed value of a ``--set``, or of another ``option``.

    A value that is not TOML is text. Raises InputError for text that is not KEY=VALUE on one line.

    >>> setting("parallelism.tp=4"), setting("model.preset=gpt-22b"), setting("parallelism.dp=")
    (('parallelism.tp', 4), ('model.preset', 'gpt-22b'), ('parallelism.dp', None))
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not key or not equals:
        raise InputError(f"{option} takes KEY=VALUE, such as {example}, not {brief(text)}")
    if len(value.splitlines()) > 1:
        raise InputError(f"{option} {key} takes a value of one line, not {brief(value)}")
    try:
        return key, tomllib.loads(f"value = {value}")["value"] if value else None
    except RecursionError:
        raise InputError(f"{option} {key} nests its lists too deeply to be read") from None
    except ValueError:
        return key, value


def _put(data: Mapping[str, Any], overrides: Mapping[str, object]) -> dict[str, Any]:
    """Return the recipe as written, with the overrides in their sections."""
    out = {name: dict(keys) if isinstance(keys, dict) else keys for name, keys in data.items()}
    for path, value in overrides.items():
        section, _, key = path.partition(".")
        if section.startswith("perturbations["):
            _put_row(out, path, value)
            continue
        if path == translate.ALLOW:
            out[path] = value
            continue
        if key not in SECTIONS.get(section, ()):
            raise InputError(unknown(path))
        table = out.setdefault(section, {})
        if not isinstance(table, dict):
            raise InputError(f"{section} = {brief(table)} must be a table, [{section}]")
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
    return out


def _put_row(out: dict[str, Any], path: str, value: object) -> None:
    """Put ``perturbations[0].compute`` into the first of these tables, or into a new last one."""
    found = _ROW.fullmatch(path)
    if not found or found[2] not in PerturbationSection.model_fields:
        keys = ", ".join(PerturbationSection.model_fields)
        raise InputError(f"unknown key {path}; perturbations[0] and so on have {keys}")
    tables = out.get("perturbations", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise InputError("perturbations must be a list of tables, [[perturbations]]")
    tables = [dict(table) for table in tables]
    k = int(found[1])
    if k > len(tables):
        raise InputError(
            f"{path}: the recipe has {len(tables)} [[perturbations]]; the next is perturbations"
            f"[{len(tables)}]"
        )
    tables += [{}] * (k == len(tables))
    tables[k] = {key: old for key, old in tables[k].items() if key != found[2]}
    if value is not None:
        tables[k][found[2]] = value
    out["perturbations"] = tables


def _validate(data: Mapping[str, Any]) -> Recipe:
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        raise InputError(sentence(error)) from None


def _simulated(recipe: Recipe) -> None:
    """Refuse values that are understood but not simulated yet."""
    for name, values in NOT_YET.items():
        section, key = name.split(".")
        value = getattr(getattr(recipe, section), key)
        if value not in values:
            instead = " or ".join(show(v) for v in values)
            advice = "leave it out" if values == (None,) else f"it must be {instead}"
            raise InputError(f"{name} = {brief(value)} is not simulated yet; {advice}")
    gathered = recipe.training.param_gather_dtype
    if gathered not in (None, recipe.training.dtype):
        raise InputError(
            f"training.param_gather_dtype = {show(gathered)} is not simulated yet; "
            f"it must be training.dtype, {show(recipe.training.dtype)}"
        )


def _complete(recipe: Recipe, folder: Path) -> Recipe:
    """Fill in everything that was left out."""
    parallelism, training = recipe.parallelism, recipe.training
    own = {
        "model": _model(recipe.model, folder, "sdpa" if recipe.native else "flash"),
        "schedule": order_file.complete(recipe.schedule, parallelism.pp, folder),
    }
    recipe = recipe.model_copy(update=own)
    split = parallelism.tp * parallelism.pp * parallelism.cp
    stages = parallelism.pp * (recipe.schedule.chunks or 1)
    given = recipe.schedule.layers_per_stage
    p2p = messages.p2p(parallelism, recipe.schedule)
    update: dict[str, dict[str, Any]] = {
        "cluster": {"topology": _topology(recipe.cluster.topology, folder)},
        "parallelism": {
            "dp": parallelism.dp or max(1, recipe.cluster.gpus // split),
            "p2p": p2p,
            "overlap_p2p": p2p != "batched"
            if parallelism.overlap_p2p is None
            else parallelism.overlap_p2p,
            "strategy": _strategy(parallelism.strategy, folder),
        },
        "schedule": {"layers_per_stage": given or _even(recipe.model.layers or 0, stages)},
        "training": {"param_gather_dtype": training.dtype},
    }
    for found in strategies.declared("complete"):
        for name, keys in found(recipe).items():
            update[name] = {**update.get(name, {}), **keys}
    filled = {name: getattr(recipe, name).model_copy(update=new) for name, new in update.items()}
    recipe = recipe.model_copy(update=filled)
    simulation = {
        "steps": recipe.simulation.steps or _steps(recipe),
        "host": _host(recipe.simulation.host, folder),
    }
    return recipe.model_copy(update={"simulation": recipe.simulation.model_copy(update=simulation)})


def _steps(recipe: Recipe) -> int:
    """Return 1, or enough updates to show the steady state where steps overlap."""
    alone = recipe.flushed and recipe.training.clip != "post"
    return 1 if alone else sum(recipe.ramps) + 2


def _even(layers: int, stages: int) -> tuple[int, ...] | None:
    return None if layers % stages else (layers // stages,) * stages


def _model(section: ModelSection, folder: Path, attention: str) -> ModelSection:
    """Return the model's section with every number filled in.

    ``attention`` is what whoever runs the model takes: PyTorch its own, as FSDP is PyTorch's.
    """
    given = section.model_dump(exclude_none=True, exclude={"hf"})
    if section.preset and section.hf:
        raise InputError("model.preset and model.hf are both given; leave one of them out")
    stated: dict[str, Any] = {}
    if section.preset:
        stated = presets.preset(section.preset)
    elif section.hf:
        file = Path(os.path.normpath(folder / section.hf))
        stated, limit = hugging_face(file), config_json.window(file)
        if limit and (section.sequence or 0) > limit and not section.pattern:
            raise InputError(
                f"model.sequence = {section.sequence} is longer than the model's sliding window; "
                f'give pattern = ["sliding"] and window = {limit}, or at most {limit} tokens'
            )
    left = mixtures.unused({**stated, **given})  # by the layers that the recipe has instead
    stated = {key: value for key, value in stated.items() if key not in left}
    try:
        said = ModelSection.model_validate({**stated, **given})
    except ValidationError as error:
        raise InputError(sentence(error, "model")) from None
    full = presets.complete(said.model_dump(exclude_none=True), attention)
    tables = {key: getattr(said, key) for key in ("mla", "load", "kernels", "recurrence")}
    return said.model_copy(update={**full, **tables})


def _strategy(name: str | None, folder: Path) -> str | None:
    """Return the path of a user's strategy in the recipe's folder, after running the file once."""
    if name is None:
        return None
    if not is_path(name):
        raise InputError(
            f"parallelism.strategy = {show(name)} is not a Python file, such as ./mine.py; "
            "built-in strategies have keys of their own"
        )
    path = regular(Path(os.path.normpath(folder / name)), "parallelism.strategy").resolve()
    module(path, "the strategy")
    return str(path)


def _host(way: bool | str, folder: Path) -> bool | str:
    """Return how the host runs; of a recorded one the file's path from the recipe's folder."""
    if isinstance(way, bool) or way in host_prices.ways():
        return way
    path = regular(Path(os.path.normpath(folder / way)), "simulation.host").resolve()
    host_prices.recorded(path)
    return str(path)


def _topology(name: str, folder: Path) -> str:
    """Return a topology's name as it is, or its file's path from the recipe's folder."""
    if "/" not in name and not name.endswith(".toml"):
        return name
    path = regular(Path(os.path.normpath(folder / name)), "cluster.topology")
    return str(path.resolve())
