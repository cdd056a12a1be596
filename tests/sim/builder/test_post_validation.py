"""Optimizer post-validation: the norm goes from stage to stage; none waits for later ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sim.recipe import recipe_file
from sim.runs.run import Result, run

RECIPE = """
cluster = { topology = "dgx_a100", gpus = 4 }
parallelism = { pp = 4, p2p = "direction" }
schedule.name = "zb_h2"
training = { micro_batch = 1, global_batch = 24, clip = "post" }
[model]
layers = 8
hidden = 2048
heads = 16
vocab = 512
sequence = 2048
position = "rope"
tied = false
"""


def small(tmp_path: Path, **own: Any) -> Result:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    changes = {key.replace("__", "."): value for key, value in own.items()}
    return run(tmp_path / "recipe.toml", {"simulation.clock": "boost", **changes})


def test_every_stage_updates_behind_the_norms_up_to_its_own(tmp_path: Path) -> None:
    """Rank q of stage s: one norm in (not the first), one out (not the last), no clipping."""
    timeline = small(tmp_path).timeline
    last = timeline.to_pandas()[timeline.graph.step == 0]
    ranks = sorted(last["rank"].unique())
    norm, adam = (
        last[last["name"] == name].groupby("rank")["end"].min() for name in ("grad_norm", "adam")
    )
    begin = last[last["name"] == "adam"].groupby("rank")["start"].min()
    assert len(ranks) == 4
    for k, rank in enumerate(ranks):
        assert begin[rank] >= max(norm[r] for r in ranks[: k + 1])
        names = set(last.loc[last["rank"] == rank, "name"])
        chain = {"grad_norm_in": k > 0, "grad_norm_out": k < 3}
        assert {name for name, there in chain.items() if there} == names & {*chain}
        assert "clip" not in names
    assert begin[ranks[0]] < norm[ranks[-1]] < adam[ranks[-1]]  # the first has not waited


def test_messages_are_four_bytes_along_the_pipeline(tmp_path: Path) -> None:
    graph = small(tmp_path, simulation__steps=1).timeline.graph
    code = graph.names.index("grad_norm_out")
    works = {graph.works[w] for w in graph.work[graph.name == code]}
    assert {work.bytes for work in works} == {4.0}
    assert {work.dimension for work in works} == {"model"}
    pairs = sorted(tuple(sorted(work.ranks)) for work in works)
    assert pairs == [(0, 1), (1, 2), (2, 3)]


def test_a_stage_sums_its_own_part_first(tmp_path: Path) -> None:
    """Over the ranks of tp, and over those that share its optimizer, of that stage alone."""
    own = {"parallelism__tp": 2, "parallelism__zero": 1, "cluster__gpus": 16}
    graph = small(tmp_path, simulation__steps=1, **own).timeline.graph
    code = graph.names.index("grad_norm_all_reduce")
    groups = {graph.works[w].ranks for w in graph.work[graph.name == code]}
    assert groups == {tuple(range(4 * q, 4 * q + 4)) for q in range(4)}


@pytest.mark.slow
def test_a_parallelogram_of_zero_bubbles_takes_its_work_alone(tmp_path: Path) -> None:
    """The step is the longest span of one rank, not from first begin to last end; 1F1B, whose
    first stage ends last, gains nothing but the all-reduce."""
    post, whole = small(tmp_path), small(tmp_path, training__clip=True)
    steps = post.summary["steps"]
    assert steps["steady"] == 2
    computing = post.summary["time_s"]["compute"]["max"]
    gain = whole.summary["step_time_s"] - post.summary["step_time_s"]
    assert post.summary["step_time_s"] < 1.02 * computing
    graph, ops = whole.timeline.graph, whole.timeline.to_pandas()
    kernels = ops[(ops["stream"] == "compute") & (ops["microbatch"] >= 0) & (graph.step == 0)]
    of_rank = kernels.groupby("rank")
    begin, end = of_rank["start"].min(), of_rank["end"].max()
    assert gain == pytest.approx(end.max() - begin.min() - (end - begin).max(), rel=0.2)
    line = {"schedule__name": "one_f_one_b"}
    post, whole = small(tmp_path, **line), small(tmp_path, training__clip=True, **line)
    assert post.summary["step_time_s"] == pytest.approx(whole.summary["step_time_s"], rel=0.02)


@pytest.mark.parametrize(
    ("own", "sentence"),
    [
        ({"schedule.name": "pipedream"}, 'clip = "post" needs a schedule with a flush'),
        ({"parallelism.pp": 1, "schedule.name": "one_f_one_b"}, 'clip = "post" needs pp > 1'),
        ({"training.clip": "later"}, "training.clip"),
    ],
)
def test_what_it_does_not_go_with(tmp_path: Path, own: dict[str, object], sentence: str) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    with pytest.raises(ValueError, match=sentence):
        recipe_file.load(tmp_path / "recipe.toml", own)
