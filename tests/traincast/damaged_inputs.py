"""Good recipes, topologies and orders, changed at random, and what the command line makes of them.

`python -m tests.traincast.damaged_inputs recipes 1000` changes so many and prints what is wrong;
each has a number, and `python -m tests.traincast.damaged_inputs recipes 1 137` makes number 137
alone, again the same.
"""

from __future__ import annotations

import copy
import csv
import functools
import math
import random
import sys
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tomli_w

import schedules
from schedules import Plan
from schedules.input_error import InputError
from sim.recipe import recipe_file
from sim.runs.schedule_run import plan_of
from tests.traincast.fuzzing import HUGE, LIMIT, VALUES, Hang, command, complaint, report
from traces import schedule_csv

ROOT = Path(__file__).parents[2]
RECIPES = sorted([*ROOT.glob("validation/recipes/*.toml"), *ROOT.glob("notebooks/recipes/*.toml")])
TOPOLOGIES = sorted([*ROOT.glob("topologies/*.toml"), *ROOT.glob("validation/recipes/**/*00gbps*")])
DEEP = "<tables in tables>"
SMALL = (0, 1, 2, 3, 4, 6, 8, 16)
NUMBERS = (0.0, 0.1, 0.5, 1.0, 1.5, 3.0, 1e-6, 40.0)
WORDS = ("", "gpipe", "zb_h1", "bf16", "./mine.py", "é", "[[x]]", "1e9", "all", "once", "post")
NEW = (
    "training.matmul=tf32", "training.optimizer_state={ master = 'none', first = 'bf16' }",
    "training.optimizer_state={ second = 'fp8' }", "training.clip=post", "training.dtype=fp32",
    "parallelism.zero=1", "parallelism.optimizer_instances=2", "parallelism.accumulate=true",
    "parallelism.fsdp={ kind = 'fsdp2', shard = 2, replicate = 'once' }", "parallelism.pp=2",
    "schedule.name=zb_2p", "schedule.chunks=2", "schedule.name=interleaved_1f1b",
    "schedule.layers_per_stage=[0, 4]", "schedule.layers_per_stage=[2, 2]", "model.layers=4",
    "schedule.layers_per_stage=[1, 1, 1, 0]", "simulation.host=true", "simulation.steps=3",
    "training.fp8={}", "training.recompute=full", "training.offload=activations", "cluster.gpus=4",
)  # fmt: skip
"""Settings that are put over good recipes, so that rare features meet."""


@functools.cache
def recipes() -> list[dict[str, Any]]:
    """The recipes that come along, made small, of those that can be."""
    found = []
    for path in RECIPES:
        if "topology" in path.read_text(encoding="utf-8") and "[model]" in path.read_text():
            small = _small(tomllib.loads(path.read_text(encoding="utf-8")), path.parent)
            try:
                recipe_file.parse(small, path.parent)
            except InputError:
                continue
            found.append(small)
    assert len(found) > len(RECIPES) / 2
    return found


def _small(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same kind of job with few layers of short samples, two replicas and a small batch."""
    split, pipe = data.setdefault("parallelism", {}), data.setdefault("schedule", {})
    for key in {"tp", "pp", "cp", "ep"} & {*split}:
        split[key] = min(split[key], 2)
    split["dp"] = 2
    pipe.pop("layers_per_stage", None)
    data["model"] |= {"sequence": 256, "vocab": 1024}
    data["training"] |= {"micro_batch": 1}
    machine = data["cluster"]["topology"]
    data["cluster"]["topology"] = str(folder / machine) if "/" in machine else machine
    _evened(data)
    return data


def _gpus(data: dict[str, Any]) -> int:
    split = data["parallelism"]
    return math.prod(split.get(key, 1) for key in ("tp", "pp", "cp", "dp"))


def recipe(rng: random.Random) -> str:
    """One of the good recipes, with features put into it that fit or not, or with wrong values."""
    data = copy.deepcopy(rng.choice(recipes()))
    for _ in range(rng.choice((0, 2, 4, 8, 16))):
        changed = copy.deepcopy(data)
        rng.choice((_new, _fitting))(changed, rng)
        if rng.random() < 0.8:
            _evened(changed)
        if _legal(changed) or rng.random() < 0.02:
            data = changed
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        rng.choice((_nasty, _nasty, _renamed, _left_out, _moved))(data, rng)
    return _written(data, rng)


def _new(data: dict[str, Any], rng: random.Random) -> None:
    key, value = recipe_file.setting(rng.choice(NEW))
    section, _, name = key.partition(".")
    data.setdefault(section, {})[name] = value


def _legal(data: dict[str, Any]) -> bool:
    """Whether the recipe is not refused; where it ends otherwise, the command says how."""
    try:
        recipe_file.parse(data)
    except InputError:
        return False
    except Exception:
        return True
    return True


def _evened(data: dict[str, Any]) -> None:
    """As many GPUs, layers and samples as the split needs, where there is one."""
    split, pipe = data["parallelism"], data["schedule"]
    if pipe.get("name") == "from_csv" or not isinstance(split.get("zero", 0), int):
        return
    stages = max(1, split.get("pp", 1) * pipe.get("chunks", 1))
    data["cluster"]["gpus"] = max(1, _gpus(data))
    parts = pipe.get("layers_per_stage", [])
    if not any(parts) or len(parts) != stages:
        parts = pipe["layers_per_stage"] = [2] * stages
    data["model"]["layers"] = sum(parts)
    if "fsdp" in split:
        split.pop("zero", None)
    if "optimizer_instances" in split or "accumulate" in split:
        split.setdefault("zero", 1 + ("accumulate" in split))
    samples = max(1, data["training"].get("micro_batch", 1) * split.get("dp", 1))
    data["training"]["global_batch"] = samples * max(4, 2 * split.get("pp", 1))


def topology(rng: random.Random) -> str:
    """One of the topologies that come along, likewise; half of them on top of another."""
    path = rng.choice(TOPOLOGIES)
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    if rng.random() < 0.3:
        data["base"] = rng.choice(("dgx_a100", "dgx_h100", "dgx_b200", "file.toml", "selene"))
    for _ in range(rng.choice((1, 1, 2, 3))):
        rng.choice((_scaled, _scaled, _nasty, _renamed, _left_out, _moved))(data, rng)
    return _written(data, rng)


@functools.cache
def _schema() -> dict[str, Any]:
    return recipe_file.json_schema()


def _fitting(data: dict[str, Any], rng: random.Random) -> None:
    """A key of the recipe's, set to something of its type, and perhaps at odds with others."""
    schema = _schema()
    section = rng.choice(["model", "parallelism", "schedule", "training", "simulation",
                          "perturbations", "cluster"])  # fmt: skip
    of = _table(schema["properties"][section], schema)
    if section == "perturbations":
        data[section] = [_drawn(of, schema, rng) for _ in range(rng.choice((1, 2)))]
        return
    name = rng.choice([*of["properties"]])
    if isinstance(data.setdefault(section, {}), dict):
        data[section][name] = _drawn(of["properties"][name], schema, rng)


def _table(of: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """What a reference, or the items of a list, refer to."""
    of = of.get("items", of)
    return schema["$defs"][of["$ref"].rpartition("/")[2]] if "$ref" in of else of


def _drawn(of: dict[str, Any], schema: dict[str, Any], rng: random.Random) -> Any:
    """A value of a type, of sizes that make no large job."""
    of = _table(of, schema) if "$ref" in of else of
    if "anyOf" in of:
        return _drawn(rng.choice([a for a in of["anyOf"] if a != {"type": "null"}]), schema, rng)
    if "enum" in of or "const" in of:
        return rng.choice(of.get("enum", [of.get("const")]))
    match of.get("type"):
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            return rng.choice(SMALL)
        case "number":
            return rng.choice(NUMBERS)
        case "array":
            return [_drawn(of.get("items", {}), schema, rng) for _ in range(rng.choice((1, 2, 4)))]
        case "object" if "properties" in of:
            required, keys = of.get("required", []), of["properties"]
            some = [k for k in keys if k in required or rng.random() < 0.3]
            return {k: _drawn(keys[k], schema, rng) for k in some}
    return rng.choice((*WORDS, *schedules.names()))


def _places(data: Any) -> list[tuple[Any, Any]]:
    """Every holder and key in tables and lists."""
    keys = [*data] if isinstance(data, dict) else [*range(len(data))]
    inner = [data[k] for k in keys if isinstance(data[k], dict | list)]
    return [(data, k) for k in keys] + [place for one in inner for place in _places(one)]


def _place(data: Any, rng: random.Random) -> tuple[Any, Any]:
    return rng.choice(_places(data) or [({"x": 1}, "x")])


def _nasty(data: dict[str, Any], rng: random.Random) -> None:
    holder, key = _place(data, rng)
    holder[key] = rng.choice((*VALUES[1:], DEEP))  # TOML has no null


def _scaled(data: dict[str, Any], rng: random.Random) -> None:
    """A figure that is many times larger or smaller, with its unit or another."""
    found = [(h, k) for h, k in _places(data) if isinstance(h[k], str | float | int)]
    holder, key = rng.choice(found or [({"x": 1}, "x")])
    value = holder[key]
    number, _, unit = value.partition(" ") if isinstance(value, str) else (value, "", "")
    try:
        size = float(number) * rng.choice((0, -1, 0.5, 2, 1e-3, 1e3, 1e-9, 1e9, 1e300))
    except ValueError:
        return
    unit = unit if rng.random() < 0.8 else rng.choice(("GB", "us", "TFLOP/s", "Gb/s", "B/s", ""))
    whole = isinstance(value, int) and abs(size) < 1e18
    holder[key] = f"{size:g} {unit}" if isinstance(value, str) else int(size) if whole else size


def _renamed(data: dict[str, Any], rng: random.Random) -> None:
    """A key that is nearly right, or another section's."""
    tables = [(h, k) for h, k in _places(data) if isinstance(h, dict)]
    holder, key = rng.choice(tables or [({"x": 1}, "x")])
    others = [other for _, other in tables]
    near = (
        f"{key}s", key[:-1], key.upper(), f"{key}.{key}", key[::-1], rng.choice(others), "", "é",
    )  # fmt: skip
    holder[rng.choice(near)] = holder[key] if rng.random() < 0.5 else holder.pop(key)


def _left_out(data: dict[str, Any], rng: random.Random) -> None:
    holder, key = _place(data, rng)
    del holder[key]


def _moved(data: dict[str, Any], rng: random.Random) -> None:
    """Something, at any depth, in the place of something else."""
    (holder, key), (other, name) = _place(data, rng), _place(data, rng)
    holder[key] = copy.deepcopy(other[name])


def _written(data: dict[str, Any], rng: random.Random) -> str:
    text = tomli_w.dumps(_clean(data)).replace(f'"{HUGE}"', "9" * 5000)
    text = text.replace(f'"{DEEP}"', "[" * 500 + "]" * 500)
    if rng.random() < 0.05:  # cut off, doubled or a letter changed
        at = rng.randrange(len(text) + 1)
        text = rng.choice((text[:at], text * 2, text[:at] + rng.choice('"[=\x00é') + text[at:]))
    return text


def _clean(data: Any) -> Any:
    """Without what TOML's writer itself stops at."""
    if isinstance(data, dict):
        return {str(k): _clean(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_clean(v) for v in data]
    return data.encode("utf-8", "replace").decode() if isinstance(data, str) else data


def order(rng: random.Random) -> str:
    """An order of a schedule that comes along, as `schedule --csv` writes it, changed."""
    name = rng.choice(schedules.names())
    plan = _plan(name, rng.choice((1, 2, 4)), rng.choice((1, 2, 4, 8)))
    rows = [*csv.reader(schedule_csv.text(plan).splitlines())]
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        rng.choice((_cell, _cell, _swapped, _row))(rows, rng)
    text = "\n".join(",".join(row) for row in rows)
    if rng.random() < 0.1:
        at = rng.randrange(len(text) + 1)
        text = rng.choice((text[:at], text * 2, text[:at] + rng.choice('"\x00é;\n') + text[at:]))
    return text


def _plan(name: str, ranks: int, microbatches: int) -> Plan:
    try:
        return plan_of(name, ranks, microbatches, schedules.stages_per_rank(name) or 1)
    except InputError:
        return plan_of("one_f_one_b", ranks, microbatches, 1)


CELLS = ("", "F", "0F", "-1F0", "0F-1", "0F9999999999", "999999999F0", "0F999999999", "0X0", "٣F٣",
         "0SEND_F0", "1RECV_F0", "0UNSHARD", "(0F1;0B0)OVERLAP_F_B", "(0F1;0F1)OVERLAP_F_B", "nan",
         "(;)OVERLAP_F_B", "0F0 ", "0I0", "0W0", "0B0", "0F0", "1F0", "1B0", "💥" * 9)  # fmt: skip


def _cell(rows: list[list[str]], rng: random.Random) -> None:
    """A cell set to something else, put in, or left out."""
    row = rng.choice(rows)
    at = rng.randrange(len(row) + 1)
    row[at : at + rng.choice((0, 1, 1, 2))] = rng.choice(
        ([], [rng.choice(CELLS)], row[at:][:1] * 2)
    )


def _swapped(rows: list[list[str]], rng: random.Random) -> None:
    row, other = rng.choice(rows), rng.choice(rows)
    if row and other:
        i, j = rng.randrange(len(row)), rng.randrange(len(other))
        row[i], other[j] = other[j], row[i]


def _row(rows: list[list[str]], rng: random.Random) -> None:
    """A row left out, doubled, emptied or very long."""
    at = rng.randrange(len(rows))
    rows[at : at + 1] = rng.choice(([], [rows[at]] * 2, [[]], [rows[at] * 50], [rows[at][::-1]]))
    rows += [[]] * (not rows)


KINDS: dict[str, tuple[Callable[[random.Random], str], str, tuple[tuple[str, ...], ...]]] = {
    "recipes": (recipe, "file.toml", (("check", "FILE"), ("run", "FILE"))),
    "topologies": (topology, "file.toml", (("topology", "FILE"),)),
    "orders": (order, "file.csv", (("schedule", "FILE"),)),
}  # fmt: skip
"""How each is made, what its file is called, and the commands that read it."""


def attempt(kind: str, number: int, folder: Path) -> tuple[str, str]:
    """Make number so and so: what it was and how it ended, and what is wrong with that."""
    made, name, commands = KINDS[kind]
    rng = random.Random(number)
    path = folder / name
    path.write_text(made(rng), encoding="utf-8", newline="")
    code, bad = -1, ""
    for words in commands:
        try:
            given = [str(path) if word == "FILE" else word for word in words]
            ended = command(*given, "--json")
        except Hang:
            return f"{number} {words[0]}", f"took over {LIMIT} s"
        code, bad = ended[0], bad or complaint(*ended)
    return f"{number} {code}", bad


def main(kind: str, count: str, first: str = "0") -> int:
    """Try so many of a kind; print what is wrong and figures; returns how many are."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = range(int(first), int(first) + int(count))
        return report(numbers, lambda n: attempt(kind, n, Path(folder)), count == "1")


if __name__ == "__main__":
    sys.exit(bool(main(*sys.argv[1:])))
