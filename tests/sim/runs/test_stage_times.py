"""Times of a stage by itself are those that it takes in a step, however its ranks share work."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim import run
from sim.graph import PHASES
from sim.machine import cluster as clusters
from sim.recipe.recipe import Recipe
from sim.runs.run import job_of
from sim.runs.stage_times import stage_seconds, stage_timelines
from tests.recipes import parsed

MODEL = {
    "layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "ffn": 512, "vocab": 512,
    "sequence": 256, "attention": "flash", "position": "rope", "dropout": 0.0, "tied": False,
}  # fmt: skip
SHARED: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2},
    "ring": {"cp": 2, "cp_kind": "ring"},
    "ulysses": {"tp": 2, "sp": True, "cp": 2, "cp_kind": "ulysses", "tp_overlap": True},
    "allgather": {"cp": 2, "cp_kind": "allgather"},
    "usp": {"cp": 4, "cp_kind": "usp", "ulysses": 2},
    "experts": {"tp": 2, "sp": True, "ep": 2},
    "experts over cp": {"cp": 2, "cp_kind": "ring", "ep": 2},
    "split experts": {"tp": 2, "sp": True, "cp": 2, "cp_kind": "allgather", "ep": 2, "etp": 2},
}
FP8: dict[str, dict[str, str] | None] = {
    "bf16": None,
    "delayed": {"recipe": "delayed"},
    "maxima over tp": {"recipe": "delayed", "amax": "tp"},
    "maxima apart": {"recipe": "delayed", "amax": "none"},
    "tensorwise": {"recipe": "tensorwise"},
    "mxfp8": {"recipe": "mxfp8"},
}


WAYS = [
    *product(SHARED, ["bf16", "delayed", "maxima over tp"]),
    *product(["ulysses", "split experts"], ["maxima apart", "tensorwise", "mxfp8"]),
]


def recipe(shared: str, fp8: str, pp: int, schedule: str) -> Recipe:
    """Stages of two layers, and two microbatches."""
    p = SHARED[shared]
    experts = {"experts": 8, "topk": 2, "expert_ffn": 256, "gated": True} if "ep" in p else {}
    own = {"schedule": {"name": schedule}, "training": {"fp8": FP8[fp8]} if FP8[fp8] else {}}
    own["simulation"] = {"spread": False}  # a stage by itself meets nobody
    return parsed(MODEL | experts | {"layers": 2 * pp}, 2, **own, pp=pp, dp=1, **p)


@pytest.mark.slow
@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("fp8", ["bf16", "delayed"])
def test_a_stage_takes_as_long_by_itself_as_in_a_step(shared: str, fp8: str) -> None:
    """A forward beside which nothing runs. In fp8 the first one casts weights as well; the second
    begins on all ranks at once, when their maxima are reduced."""
    one = recipe(shared, fp8, pp=1, schedule="gpipe")
    timeline = run(one).timeline
    microbatch = timeline.graph.microbatch == (fp8 == "delayed")
    forward = microbatch & (timeline.graph.phase == PHASES.index("F"))
    found = timeline.end[forward].max() - timeline.start[forward].min()
    cluster = clusters.load("dgx_h100", one.cluster.gpus)
    alone = stage_timelines(job_of(one), cluster, range(2), first=True, last=True)["F"]
    assert alone.seconds == pytest.approx(found, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("shared", "fp8"), WAYS)
def test_every_way_to_share_a_stage_has_times(shared: str, fp8: str) -> None:
    """Searched orders ask for them: by all ranks' maxima, a ring's hops, experts' exchanges."""
    plan = job_of(recipe(shared, fp8, pp=2, schedule="zb_1p")).plan
    assert [len(steps) for steps in plan] == [6, 6]


@pytest.mark.slow
def test_maxima_cost_time_in_a_stage_that_shares_sequences(shared: Path) -> None:
    """The case of delayed scaling under Ulysses, which asked for an axis that there was not."""
    path = shared.parent / "cases" / "engine" / "04_fp8_delayed_ulysses_zb_1p.toml"
    cluster, times = clusters.load("dgx_h100", 8), list[float]()
    for amax in ("all", "none"):
        given = {"training.fp8": {"recipe": "delayed", "amax": amax}}
        result = run(path, given)
        alone = stage_timelines(result.job, cluster, range(2))
        times += [alone["F"].seconds, alone["I"].seconds, result.timeline.seconds]
    assert np.all(np.array(times[:3]) > np.array(times[3:]))


def test_a_stages_times_are_the_same_where_replicas_share_parameters() -> None:
    """Searched schedules of two tensor-parallel ranks and four shards once ended in an error."""
    cluster, seconds = clusters.load("dgx_h100", 8), []
    for more in ({}, {"fsdp": {"kind": "fsdp1"}}):
        found = parsed(MODEL | {"layers": 1}, 4, tp=2, dp=4, **more)
        seconds.append(stage_seconds(job_of(found, cluster), cluster))
    assert seconds[0] == seconds[1]
