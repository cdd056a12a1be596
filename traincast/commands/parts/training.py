"""Tables and picture of ``traincast goodput``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sim.units import long, size
from traincast.commands.parts import tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = dict[str, Any]
NAMES = {"best": "best", "young": "Young 1974", "daly": "Daly 2006"}


def show(of: Figures) -> None:
    """Print the figures of a run, where its time goes, and what other intervals would give."""
    tables.show(_rows(of), "training run", "value")
    whole = of["seconds"]["mean"]
    parts = [(name(part), long(value), value / whole) for part, value in of["parts_s"].items()]
    tables.show(parts, "where the time goes", ("mean", 1), ("share", 2, ".2%"))
    columns = (
        ("steps", "steps", ",d"),
        ("time", "every_s", long),
        ("goodput", "goodput/mean", ".2%"),
    )
    tables.show(_intervals(of), ("checkpoints every", "name"), *columns)
    if of["assumed"]:
        said = ", ".join(f"{key} = {value}" for key, value in of["assumed"].items())
        tables.say(f"defaults: {said}")
    for sentence in of["warnings"]:
        tables.say(sentence, "bold red")


def name(part: str) -> str:
    """Return what a part of the time is called."""
    return "waiting for a spare" if part == "waiting" else part.replace("_", " ")


def _rows(of: Figures) -> list[tuple[str, str]]:
    good, time, checkpoint = of["goodput"], of["seconds"], of["checkpoint"]
    failures = sum(round(100 * n) for n in of["failures"].values()) / 100
    rows = [
        ("goodput", f"{good['mean']:.2%} (90 % of runs: {good['p5']:.2%} to {good['p95']:.2%})"),
        ("time", f"{long(time['mean'])} ({long(time['p5'])} to {long(time['p95'])})"),
        ("steps", f"{of['steps']:,} of {long(of['step_s'])}"),
    ]
    if of["tokens"]:
        rows.append(("tokens", f"{of['tokens'] / 1e12:,.4g}T"))
    if of["mtbf_s"]:
        rows.append(("failures", f"{failures:,.1f}, one every {long(of['mtbf_s'])} of running"))
    rows.append(("checkpoint", f"{size(checkpoint['bytes'])}, {checkpoint['kind']}"))
    rows.append(("stops steps for", long(checkpoint["stall"])))
    rows += [("safe after", long(checkpoint["settle"]))] if checkpoint["settle"] else []
    if "cost_usd" in of:
        rows.append(("cost", f"{of['cost_usd']:,.0f} USD"))
    if "energy_j" in of:
        rows.append(("energy of the GPUs", f"{of['energy_j'] / 3.6e9:,.0f} MWh"))
    return rows


def _intervals(of: Figures) -> list[Figures]:
    """Return the intervals of formulas, and first the one of the run, unless it is the best."""
    rows = [{"name": NAMES[key], **row} for key, row in of["intervals"].items() if key in NAMES]
    chosen = of["intervals"]["chosen"]
    same = chosen["steps"] == of["intervals"]["best"]["steps"]
    return rows if same else [{"name": "this run", **chosen}, *rows]


def draw(of: Figures, model: str) -> Figure:
    """Draw where the time goes with each of these intervals."""
    from sim import plots

    named = dict[int, list[str]]()
    for row in _intervals(of):
        named.setdefault(row["steps"], []).append(row["name"])
    of_steps = {row["steps"]: row for row in of["intervals"].values()}
    rows = {
        f"{', '.join(names)}\nevery {long(of_steps[k]['every_s'])}": of_steps[k]
        for k, names in named.items()
    }
    ends = {key: f"{row['goodput']['mean']:.1%}" for key, row in rows.items()}
    title = f"{model}: where the time of {long(of['seconds']['mean'])} goes, and goodput"
    return plots.goodput({key: row["parts_s"] for key, row in rows.items()}, ends=ends, title=title)
