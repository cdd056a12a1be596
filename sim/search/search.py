"""One call: search the layouts of a recipe, into a folder if one is named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf, nextafter
from pathlib import Path

import pyarrow as pa

from schedules.input_error import InputError
from sim import units
from sim.files import alone
from sim.search import table
from sim.search.found import Found
from sim.search.objective import Objective, objective
from sim.search.searching import Report, Search
from sim.search.space import space

FILE = "search.parquet"
OFFLOAD = "training.offload"
Values = Mapping[str, object]


def search(
    recipe: str | Path,
    gpus: int | Sequence[int] | None = None,
    objective: str = "step_time",
    budget: int = 200,
    fix: Values | None = None,
    overrides: Values | None = None,
    deadline: float | None = None,
    out: str | Path | None = None,
    jobs: int = -1,
    report: Report = lambda *_: None,
) -> Found:
    """Find the best layouts of a recipe on a number of GPUs, or on one of several numbers.

    ``objective`` is step_time, tokens_per_dollar or energy. ``budget`` is the most steps that are
    simulated. ``fix`` has the value, or a list of the only values, to try of some keys; global
    batch, model and machine stay the recipe's, over which ``overrides`` are put. ``deadline``, in
    seconds of a step, asks for the fewest of ``gpus`` that meet it. The folder ``out`` gets
    search.parquet; a search that was interrupted goes on there. ``jobs`` are processes, -1 as many
    as CPUs; any number finds the same. Raises InputError for what no search can be made of.
    """
    aim, path = _objective(objective, deadline), Path(recipe)
    given = {k: v if isinstance(v, list) else [v] for k, v in (fix or {}).items()}
    if budget < 1:
        raise InputError(f"a budget of {budget} simulates nothing; it must be at least 1")
    numbers = _numbers(path, gpus, overrides)
    spaces = {n: space(path, n, given, overrides) for n in numbers}
    for one in spaces.values():
        aim.rate(one)
    most = inf if deadline is None else nextafter(deadline, inf)
    made = Search(spaces, aim, budget, most, jobs, report)
    if out is None:
        return _found(made, deadline)
    file = Path(out) / FILE
    with alone(file):
        return _into(file, made, deadline)


def _objective(name: str, deadline: float | None) -> Objective:
    if deadline is not None and name != "step_time":
        raise InputError(f"a deadline is for step_time, not for {name}; leave one of them out")
    if deadline is not None and not 0 < deadline < inf:
        raise InputError(f"a deadline of {deadline:g} s must be above 0 s")
    return objective(name)


def _numbers(path: Path, gpus: int | Sequence[int] | None, overrides: Values | None) -> list[int]:
    """Return the numbers of GPUs, in ascending order: by default the recipe's own."""
    if gpus is None:
        return [space(path, 1, None, overrides).stated]
    out = sorted({gpus} if isinstance(gpus, int) else {*gpus})
    if not out or out[0] < 1:
        raise InputError(f"gpus = {gpus} must be at least 1")
    return out


def _into(file: Path, made: Search, deadline: float | None) -> Found:
    first = next(iter(made.spaces.values()))
    columns = table.schema(first, table.identity([*made.spaces.values()], made.objective.name))
    made.known = table.known(file, columns)
    made.save = lambda search: _keep(file, search, columns)
    try:
        found = _found(made, deadline)
    except BaseException:
        _keep(file, made, columns)
        raise
    table.write(file, found.rows, columns)
    return found


def _keep(file: Path, search: Search, columns: pa.Schema) -> None:
    """Write what has been tried, from which the search goes on; nothing makes no file."""
    if search.known:
        table.save(file, search.known, columns)


def _found(made: Search, deadline: float | None) -> Found:
    if deadline is None:
        made.run()
        return _answer(made, [made])
    done = list[Search]()
    for gpus, one in made.spaces.items():
        left = made.budget - sum(search.simulations for search in done)
        done.append(replace(made, spaces={gpus: one}, budget=left))
        if _met(done[-1]):
            break
    return _answer(made, done)


def _met(search: Search) -> bool:
    """Run a search for a deadline, and return whether a layout meets it."""
    search.run()
    return any(row["outcome"] == "simulated" and row["cost"] < search.most
               for row in search.tried.values())  # fmt: skip


def _answer(made: Search, done: list[Search]) -> Found:
    """Return what searches that have run have found; raises InputError where that is nothing."""
    rows = sorted((row for of in done for row in table.rows(of)), key=table.rank)
    first = next(iter(made.spaces.values()))
    found = Found(rows, first.keys, made.objective.name, made.objective.unit, _gap(done))
    if not found.simulated:
        raise InputError(_nothing(made, done))
    return found


def _gap(done: Sequence[Search]) -> float:
    """Return the share by which a layout that was not simulated could at most beat the best."""
    costs = [row["cost"] for of in done for row in of.tried.values()
             if row["outcome"] == "simulated"]  # fmt: skip
    best = min(costs, default=0.0)
    return max((1.0 - turn.cost / best for of in done for turn in of.waiting if turn.cost < best),
               default=0.0)  # fmt: skip


def _nothing(made: Search, done: Sequence[Search]) -> str:
    """Return in a sentence why a search has found no layout."""
    numbers = ", ".join(f"{gpus:,}" for gpus in made.spaces)
    what = f"on {numbers} GPU{'s' if numbers != '1' else ''}"
    waiting, tried = ([x for of in done for x in getattr(of, k)] for k in ("waiting", "tried"))
    full = [of.bytes for search in done for of in search.full.values()]
    full += [row["least_bytes"] for search in done for row in search.tried.values()
             if row["outcome"] == "memory"]  # fmt: skip
    if not (waiting or tried or full):
        return f"no layout {what} is legal; another number of GPUs or fewer fixed keys would do"
    if waiting and done[-1].simulations < made.budget:
        return f"no layout {what} can meet the deadline; more GPUs or a later one would do"
    if waiting:
        return f"the budget of {made.budget} simulations found no layout {what}; more would do"
    refused = [row["refused"] for of in done for row in of.tried.values() if row.get("refused")]
    if not full:
        return str(refused[0])
    return (
        f"no layout {what} fits; the one that needs least needs {units.size(min(full))} on a GPU; "
        "more GPUs, or training.offload, would do"
    )
