"""Figures over ranks of a job in which some stand for others, against those of all ranks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping
from math import isclose
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis import stragglers as study
from sim.analysis.breakdown import breakdown
from sim.analysis.collectives import collectives
from sim.analysis.exposed import by_cause, exposed
from sim.analysis.lateness import lateness
from sim.analysis.path import by_straggler, path
from sim.analysis.roofline import roofline
from sim.analysis.weights import lower_median, mean, median, middle_rows
from sim.engine import simulate
from sim.report.tables import of_ops, of_summary
from sim.runs.run import Result
from sim.whatif.equal import levelled
from sim.whatif.stragglers import stragglers
from tests.recipes import ran

CLOSE = 1e-9
MODEL = {
    "layers": 2, "hidden": 256, "heads": 8, "ffn": 512, "vocab": 512, "sequence": 256,
    "attention": "flash", "dropout": 0.0,
}  # fmt: skip
EXPERTS = {"experts": 8, "topk": 2, "expert_ffn": 256, "gated": True}
SLOW = {"rank": 5, "compute": 1.5}
JOBS: dict[str, dict[str, Any]] = {
    "dense": {"gpus": 16, "parallelism": {"tp": 2, "pp": 2, "dp": 4}, "perturbations": [SLOW]},
    "fsdp2": {"gpus": 8, "parallelism": {"dp": 8, "fsdp": {"kind": "fsdp2"}},
        "perturbations": [SLOW, {"rank": 1, "compute": 0.8}]},
    "experts": {"gpus": 8, "model": EXPERTS, "parallelism": {"dp": 8, "ep": 4},
        "perturbations": [SLOW]},
    "slow link": {"gpus": 32, "parallelism": {"tp": 8, "sp": True, "dp": 4},
        "perturbations": [{"link": "pcie", "rank": 11, "bandwidth": 0.25}]},
    "most slow": {"gpus": 4, "parallelism": {"dp": 4},
        "perturbations": [{"rank": [1, 2, 3], "compute": 1.5}]},
    "uniform": {"gpus": 16, "parallelism": {"tp": 4, "pp": 2, "dp": 2}, "perturbations": []},
}  # fmt: skip


def simulated(job: Mapping[str, Any], fold: str) -> Result:
    way = job["parallelism"] | {"gpus": job["gpus"], "simulation": {"fold": fold}}
    batch = 2 * way.get("dp", 1)
    return ran(MODEL | job.get("model", {}), batch, *job["perturbations"], **way)


def figures(of: Result) -> dict[str, Any]:
    """Every figure that adds, averages or ranks over ranks."""
    timeline, summary = of.timeline, of.summary
    graph, late, times = timeline.graph, lateness(timeline), breakdown(timeline)
    blame = stragglers(timeline, of.machine, of.cluster, of.job)
    ideal, table = study.stragglers(timeline), roofline(timeline)
    kernels = table.groupby(["kind", "flops", "bytes"])[["count", "total_s"]].sum()
    met = collectives(timeline).groupby(["dimension", "members"]).sum().drop(
        columns="longest_wait_s"
    )  # fmt: skip
    return {
        "summary": [summary[key] for key in ("step_time_s", "mfu", "bubble", "time_s")],
        "late": [late.slowdown, sum(late.causes * late.stands_for)],
        "waited for": sum(by_straggler(path(timeline)).values()),
        "hidden": [times.hidden_share(name) for name in times.moving],
        "exposed": by_cause(exposed(timeline)),
        "levelled": simulate(*levelled(graph, of.machine)).seconds,
        "blame": [blame.slowdown, blame.ideal_s, blame.by_stage, blame.by_kind, blame.by_step],
        "study": [ideal.slowdown, ideal.by_stage, ideal.by_kind, ideal.last_stage_share],
        "kernels": kernels.T.to_dict(),
        "collectives": met.T.to_dict(),
        "ops": {row[:2]: row[2:] for row in of_ops(timeline).rows},
        "sent": of_summary(summary)[3].values(),
    }


def flat(of: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(of, Mapping):
        for key in of:
            yield from flat(of[key], f"{at} {key}")
    elif isinstance(of, list | tuple):
        for k, one in enumerate(of):
            yield from flat(one, f"{at} {k}")
    else:
        yield at, of


def check(job: Mapping[str, Any]) -> Result:
    """The figures of the job with ranks that stand for others are those with all of its ranks."""
    some, whole = simulated(job, "auto"), simulated(job, "none")
    assert len(some.timeline.graph.ranks()) < len(whole.timeline.graph.ranks()) == job["gpus"]
    found, right = (dict(flat(figures(of))) for of in (some, whole))
    assert found.keys() == right.keys()
    least = CLOSE * whole.timeline.seconds
    for name, value in right.items():
        if isinstance(value, str):
            assert found[name] == value, name
        else:
            assert isclose(found[name], value, rel_tol=CLOSE, abs_tol=CLOSE * least), name
    return some


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_figures_over_ranks_count_those_that_are_not_simulated(name: str) -> None:
    check(JOBS[name])


@pytest.mark.slow
def test_a_slow_ranks_own_row_is_that_of_all_ranks() -> None:
    """What one rank costs, and what its replica does: the others of the job are ideal."""
    some, whole = (simulated(JOBS["dense"], fold) for fold in ("auto", "none"))
    one, all_ = (stragglers(r.timeline, r.machine, r.cluster, r.job) for r in (some, whole))
    assert next(iter(one.by_rank)) == 5 == next(iter(all_.by_rank))
    assert one.by_rank[5] == pytest.approx(all_.by_rank[5], rel=CLOSE)
    assert one.by_replica[2] == pytest.approx(all_.by_replica[2], rel=CLOSE)


@given(
    values=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(1, 5)), min_size=1)
)
@settings(max_examples=50, deadline=None)
def test_weights_count_as_rows_that_are_written_so_often(
    values: list[tuple[int, int, int]],
) -> None:
    """Against the statistics module, of each group with its values written out."""
    value, group, weight = (np.array(column) for column in zip(*values, strict=True))
    value, each = value.astype(float), weight.astype(float)
    whole = {k: np.repeat(value[group == k], weight[group == k]).tolist() for k in set(group)}
    for ours, theirs in (
        (mean, statistics.fmean),
        (median, statistics.median),
        (lower_median, statistics.median_low),
    ):
        assert ours(value, group, each) == pytest.approx([theirs(whole[k]) for k in group])
    rows = middle_rows(value, group, each)
    assert (group[rows] == group).all()
    assert value[rows].tolist() == lower_median(value, group, each).tolist()
