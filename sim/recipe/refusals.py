"""What is wrong with a recipe, in one sentence for the person who wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sim import strategies
from sim.keys.refusals import TYPES, brief, fault, limit, nearest
from sim.recipe.recipe import Recipe
from sim.recipe.sections import NoiseTable, PerturbationSection

SECTIONS: dict[str, list[str]] = {
    name: sorted(field.annotation.model_fields)
    for name, field in Recipe.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
"""The keys of each section."""
FORMS = ("literal[", "bool", "constrained-str")
"""How pydantic's names of a value's forms begin, where it may be a word, a switch or a table,
whose name ends with Table."""
TABLES = {
    f"{name}.{key}": sorted(table.model_fields)
    for name, section in Recipe.model_fields.items()
    for key, field in getattr(section.annotation, "model_fields", {}).items()
    for table in get_args(field.annotation)
    if isinstance(table, type) and issubclass(table, BaseModel)
}
"""The keys of each table inside a section."""
LISTS = {
    "model.pattern": '["sliding", "full"]',
    "model.feed_forward": '["dense", "experts"]',
    **{name: such for of in strategies.declared("LISTS") for name, such in of.items()},
}
"""Lists of words, each with an example."""


def sentence(
    error: ValidationError, section: str = "", spelling: Mapping[str, str] | None = None
) -> str:
    """Return the first thing that pydantic found wrong with a recipe, or with a section of it.

    ``spelling`` gives the names that the file has for the keys of that section.
    """
    problems = _meant(error)  # a misspelt key also makes another one missing
    problem = min(problems, key=lambda problem: problem["type"] != "extra_forbidden")
    where = [section] * bool(section) + [str(part) or '""' for part in problem["loc"]]
    if where[0] == "perturbations" and len(where) > 2:
        return _of_perturbation(problem, where)
    inner = ".".join(where[:2]) in TABLES
    name = ".".join(where[: 2 + inner])
    if spelling is not None:
        name = spelling.get(where[-1], name)
    choices = [p for p in problems if [section] * bool(section) + list(p["loc"][:3]) == where[:3]]
    if len(words := dict.fromkeys(map(_choice, choices))) > 1:
        return f"{name} = {brief(problem['input'])} must be {' or '.join(words)}"
    index = f"[{where[2]}]" if len(where) > 2 and where[2].isdigit() else ""
    found = f"{name}{index} = {brief(problem['input'])}"
    match problem["type"]:
        case "extra_forbidden":
            return unknown(name)
        case "missing":
            whole = name if len(where) > 1 else f"the section [{name}]"
            return f"{whole} is missing{_GIVE.get(name, '')}"
        case "tuple_type" if name in LISTS:
            return f"{found} must be a list, such as {LISTS[name]}"
        case _:
            return fault(problem, f"{name}{index}")


_GIVE = {
    "cluster": "; --topology dgx_h100 --gpus 8 would do",
    "cluster.topology": "; --topology dgx_h100 would do",
    "cluster.gpus": "; --gpus 8 would do",
    "training": "; --set training.global_batch=64 would do",
    "training.global_batch": "; --set training.global_batch=64 would do",
}
"""What would do for keys that every recipe needs."""


def _meant(error: ValidationError) -> list[ErrorDetails]:
    """Return what pydantic found; if a value may be a word or a table, only about its form."""
    found = error.errors(include_url=False)
    tables = {p["loc"][:2] for p in found if _is_table(p) and p["type"] != "model_type"}
    meant = [p for p in found if not _form(p) or _is_table(p) == (p["loc"][:2] in tables)]
    meant = [p for p in meant if not _in_another_form(p, found)]
    for problem in meant:
        form = _form(problem)
        problem["loc"] = tuple(part for part in problem["loc"] if not form or part != form)
    return meant


def _in_another_form(problem: ErrorDetails, found: Sequence[ErrorDetails]) -> bool:
    """Return whether a table is no number or list, where it may be a table."""
    numbers, at = ("float_type", "tuple_type"), problem["loc"][:-1]
    if not isinstance(problem["input"], dict) or problem["type"] not in numbers:
        return False
    return not _is_table(problem) and any(
        other["loc"][: len(at)] == at and _is_table(other) for other in found
    )


def _form(problem: ErrorDetails) -> str:
    said = (str(part) for part in problem["loc"])
    return next((part for part in said if part.startswith(FORMS) or part.endswith("Table")), "")


def _is_table(problem: ErrorDetails) -> bool:
    return _form(problem).endswith("Table")


def _of_perturbation(problem: Mapping[str, Any], where: list[str]) -> str:
    """Return what is wrong with a key of one of the tables [[perturbations]]."""
    inner = [key for key in where[3:4] if where[2] == "noise" and key.isidentifier()]
    name, key = ".".join([f"perturbations[{where[1]}]", where[2], *inner]), where[2 + len(inner)]
    known = sorted((NoiseTable if inner else PerturbationSection).model_fields)
    if problem["type"] == "extra_forbidden":
        near = nearest(key, known)
        return f"unknown key {name}; " + (
            f"did you mean {near}?" if near else f"it has {', '.join(known)}"
        )
    if problem["type"] == "missing":
        return f"{name} is missing"
    if key not in ("rank", "noise", "sigma", "lengths", "gpu_spread") or "ctx" in problem:
        return fault(problem, name)
    above = "" if key == "rank" else " above 0 and at most 1e6"
    return f"{name} = {brief(problem['input'])} must be a number or a list of numbers{above}"


def _choice(problem: Mapping[str, Any]) -> str:
    """Return one of several forms that a value may have, in words."""
    bound = problem.get("ctx", {})
    for key, word in (("ge", "least"), ("le", "most")):
        if key in bound:
            return f"at {word} {limit(bound[key])}"
    if problem["type"].startswith("string_"):  # of simulation.host
        return "the path of a .json file"
    return str(bound.get("expected") or TYPES.get(problem["type"], problem["msg"].lower()))


def unknown(path: str) -> str:
    """Return the message for a key that no recipe has, with the key that was probably meant.

    A key of another section is meant only if it has the very same name.

    >>> unknown("parallelism.bucket")
    'unknown key parallelism.bucket; did you mean parallelism.bucket_mb?'
    >>> unknown("schedule.ahead")[:52]
    'unknown key schedule.ahead; [schedule] has chunks, c'
    >>> unknown("parallelism.fsdp.prefetched")
    'unknown key parallelism.fsdp.prefetched; did you mean parallelism.fsdp.prefetch?'
    """
    table, _, last = path.rpartition(".")
    if table in TABLES:
        if last in TABLES[table]:
            return f"{path} is a key of a table; give the whole table: {table}={{{last} = ...}}"
        near = nearest(last, TABLES[table])
        have = f"did you mean {table}.{near}?" if near else f"it has {', '.join(TABLES[table])}"
        return f"unknown key {path}; {have}"
    section, _, key = path.partition(".")
    meant = section if section in SECTIONS else nearest(section, SECTIONS, 0.6)
    if section == "perturbations":
        return (
            "[[perturbations]] are set key by key; perturbations[0].compute is a key of the first"
        )
    near = _elsewhere(key or section, 1.0)
    if meant and key and not near:
        close = key if key in SECTIONS[meant] else nearest(key, SECTIONS[meant])
        near = close and f"{meant}.{close}"
    if section not in SECTIONS:
        near = near or _elsewhere(key or section) or meant
    if near:
        return f"unknown key {path}; did you mean {near}?"
    if section in SECTIONS:
        return f"unknown key {path}; [{section}] has {', '.join(SECTIONS[section])}"
    return f"unknown key {path}; the sections are {', '.join(Recipe.model_fields)}"


def _elsewhere(key: str, cutoff: float = 0.75) -> str | None:
    """Return the nearest key of any section."""
    sections = {k: name for name, keys in SECTIONS.items() for k in keys}
    close = nearest(key, sections, cutoff)
    return close and f"{sections[close]}.{close}"
