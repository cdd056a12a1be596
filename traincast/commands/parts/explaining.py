"""Shows and draws what makes up a step: ``run --explain`` and ``validate --explain``."""

from __future__ import annotations

from math import ceil, log10
from pathlib import Path
from typing import Any

from sim.runs.explain import EFFECTS, Explained
from sim.runs.explain import explain as explained
from sim.runs.run import Report, Result
from sim.units import seconds
from traincast.commands.parts import output, tables

PICTURE = "explain.png"


def of_run(result: Result, report: Report) -> dict[str, Any]:
    """Return the figures of a run."""
    return figures(explained(result.recipe, report))


def figures(step: Explained, measured: float | None = None) -> dict[str, Any]:
    """Return the seconds as JSON holds them; with ``measured`` also what is left."""
    out: dict[str, Any] = {
        "boost_s": step.boost,
        "added_s": dict(step.added),
        "predicted_s": step.predicted,
    }
    if measured is not None:
        out |= {"measured_s": measured, "left_s": measured - step.predicted}
    return out


def show(found: dict[str, Any]) -> None:
    """Print a row for each effect: its seconds, and its share of the prediction."""
    whole = found["predicted_s"]
    rows = [("without load, at boost clock", found["boost_s"], "")]
    rows += [(EFFECTS[name], added, "+") for name, added in found["added_s"].items()]
    rows.append(("prediction", whole, ""))
    if "measured_s" in found:
        rows += [("not explained", found["left_s"], "+"), ("measured", found["measured_s"], "")]
    digits = max(0, 4 - ceil(log10(whole)))  # four of the prediction, for all rows alike
    shown = [(of, f"{s:{sign}.{digits}f}", f"{s / whole:{sign}.1%}") for of, s, sign in rows]
    tables.show(shown, "what load adds", "seconds", "of the prediction")


def draw(found: dict[str, Any], path: Path, title: str) -> Path:
    """Write the waterfall from boost clock to the prediction, or to the measured step."""
    from sim import plots

    parts = {EFFECTS[name]: added for name, added in found["added_s"].items() if added}
    measured = "measured_s" in found
    parts |= {"not explained": found["left_s"]} if measured else {}
    last = "measured" if measured else "prediction"
    after = found["measured_s"] if measured else found["predicted_s"]
    says = f"{title}: {seconds(found['predicted_s'])} predicted"
    picture = plots.waterfall(
        found["boost_s"], after, parts, names=("boost clock", last), title=says
    )
    return output.draw(picture, path)
