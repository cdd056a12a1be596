"""What ``traincast run --stragglers`` computes, shows and draws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sim.runs.latencies import FEW_OPS
from sim.runs.run import Report, Result, run
from traincast.commands.parts import output, tables

TABLES = ("rank", "stage", "replica", "kind", "step")
MOST = 4  # rows of each table
PICTURE = "stragglers.png"


def figures(result: Result, report: Report) -> dict[str, Any]:
    """Return the slowdowns as JSON holds them, and the matrix of ranks."""
    from sim.whatif import rank_matrix, stragglers

    result = _whole(result)
    of = result.timeline, result.machine, result.cluster, result.job
    found = stragglers(*of, report, result.recipe.ramps)
    rows, columns, values = rank_matrix(found, result.job)
    plain = {
        key: {str(label): slow for label, slow in value.items()}
        if isinstance(value, Mapping)
        else value
        for key, value in asdict(found).items()
    }
    ranks = {"replicas": rows, "pipeline_ranks": columns, "slowdown": values.tolist()}
    alike = {str(rank): n for rank, n in result.timeline.graph.stands_for.items() if n > 1}
    return {**plain, "matrix": ranks, "stands_for": alike}


def _whole(result: Result) -> Result:
    """Return the run of all ranks if they have few ops, so that each is asked about by itself."""
    from sim.analysis.weights import op_weights

    graph, recipe = result.timeline.graph, result.recipe
    if not (recipe.perturbations and graph.stands_for) or op_weights(graph).sum() > FEW_OPS:
        return result
    simulation = recipe.simulation.model_copy(update={"fold": "none"})
    return run(recipe.model_copy(update={"simulation": simulation}))


def show(found: Mapping[str, Any]) -> None:
    """Print the slowdown, and the labels of each table that cost most."""
    slow = found["slowdown"]
    if slow < 1.0 - 1e-9:
        tables.say(
            "the cost of stragglers is unknown: the step in which all ranks are alike is longer, "
            f"by {1 / slow - 1:.2%}"
        )
        return
    rows = [("the step", slow)]
    for table in TABLES:
        if table == "step" and len(found["by_step"]) == 1:
            continue  # it is the first row
        worst = [(of, s) for of, s in found[f"by_{table}"].items() if s > 1.0 + 1e-9][:MOST]
        alike = found["stands_for"] if table == "rank" else {}
        rows += [
            (f"{table} {of}" + (f" x {alike[of]:,}" if of in alike else ""), s) for of, s in worst
        ]
    lost = ("of a step without", lambda row: row[1] - 1, "+.2%")
    tables.show(rows, "stragglers", ("slowdown", 1, ".4f"), lost)
    if len(rows) == 1:
        tables.say("no rank, link or pause makes this step longer than a usual one")


def draw(found: Mapping[str, Any], path: Path, title: str) -> Path:
    """Write the matrix of ranks, a row per replica and a column per pipeline rank."""
    import numpy as np

    from sim import plots

    of = found["matrix"]
    picture = plots.heat(
        np.array(of["slowdown"]),
        of["replicas"],
        of["pipeline_ranks"],
        row="replica (dp), one of those alike" if found["stands_for"] else "replica (dp)",
        column="pipeline rank",
        says="slowdown of the step",
        title=f"{title}: what each rank costs, of {found['slowdown']:.3f} in all",
    )
    return output.draw(picture, path)
