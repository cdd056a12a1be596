"""Two timelines compared: parts that sum exactly, ops that find each other."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.analysis.difference import aligned, by_op, difference
from sim.engine import simulate
from sim.graph import Builder, Communication, Fixed
from sim.machine.hardware import ideal
from sim.timeline import Timeline
from traces.own import perfetto
from traincast.commands.parts.difference import figures, read, show


def pipeline(first: float = 5.0, second: float = 4.0, hop: float = 0.5, count: int = 2) -> Timeline:
    """Rank 0 computes and sends to rank 1, which computes; ``count`` times."""
    b = Builder()
    message = Communication("p2p", 8.0, (0, 1), "pp")
    for k in range(count):
        one = b.add("one", 0, "compute", Fixed(first), microbatch=k)
        send = b.add("send", 0, "pp", message, [one], microbatch=k)
        recv = b.add("recv", 1, "pp", message, microbatch=k)
        b.join([send, recv])
        b.add("two", 1, "compute", Fixed(second, "attention"), [recv], microbatch=k)
    graph = b.graph()
    return simulate(graph, ideal(graph, p2p=hop))


def test_the_waterfall_worked_by_hand():
    """5 + 5 + 0.5 + 4 = 14.5 s; with 3 s and a hop of 2 s it is 3 + 2 + 4 + 4 = 13 s."""
    of = difference(pipeline(), pipeline(first=3.0, hop=2.0))
    assert (of.before_s, of.after_s) == (14.5, 13.0)
    expected = {"compute": -7.0, "compute attention": 4.0, "communication pp": 1.5}
    assert of.waterfall == expected
    assert list(of.waterfall) == [*expected]


SECONDS = st.floats(1e-6, 1e3)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(*[st.tuples(SECONDS, SECONDS, SECONDS, st.integers(1, 4))] * 2)
def test_parts_sum_to_the_difference_to_the_last_bit(a, b):
    before, after = pipeline(*a), pipeline(*b)
    of = difference(before, after)
    assert math.fsum(of.waterfall.values()) == after.seconds - before.seconds


def test_ops_find_each_other_whatever_their_order():
    """Microbatch by microbatch; what only one side has stays, with its own seconds."""
    before, after = pipeline(), pipeline(first=3.0, count=3)
    of = aligned(before, after)
    both = of[(of["op_before"] >= 0) & (of["op_after"] >= 0)]
    assert len(both) == len(before.graph)
    assert len(of) == len(after.graph)
    for row in both.itertuples():
        assert before.graph.op(row.op_before)[:2] == after.graph.op(row.op_after)[:2]
        assert before.graph.microbatch[row.op_before] == after.graph.microbatch[row.op_after]
    assert both["change_s"][both["name"] == "one"].tolist() == [-2.0, -2.0]
    table = by_op(of).set_index("name")
    assert table.loc["one", ["before", "after"]].tolist() == [2, 3]
    assert table.loc["one", ["before_s", "after_s", "change_s"]].tolist() == [10.0, 9.0, -1.0]
    assert table.index[0] == "two"  # one more of 4 s


def test_ops_alike_go_by_their_order():
    b = Builder()
    for seconds in (1.0, 2.0):
        b.add("same", 0, "compute", Fixed(seconds))
    graph = b.graph()
    early = simulate(graph, ideal(graph))
    of = aligned(early, Timeline(graph, early.start, early.end + np.array([0.0, 3.0])))
    assert of["nth"].tolist() == [0, 1]
    assert of["change_s"].tolist() == [0.0, 3.0]
    b = Builder()
    for name, seconds in (("new", 9.0), ("same", 1.0), ("same", 2.5)):
        b.add(name, 0, "compute", Fixed(seconds))
    graph = b.graph()
    of = aligned(early, simulate(graph, ideal(graph)))
    assert of["change_s"][of["name"] == "same"].tolist() == [0.0, 0.5]


@pytest.mark.slow
def test_diff_reads_timelines_and_recipes_and_draws(traincast, tmp_path):
    files = [tmp_path / f"{name}.json.gz" for name in "ab"]
    perfetto.write(pipeline(), files[0])
    perfetto.write(pipeline(first=3.0, hop=2.0), files[1])
    code, out, _ = traincast("diff", *files, "--json", "--plot", tmp_path / "w.png")
    found = json.loads(out)
    assert code == 0
    assert (tmp_path / "w.png").stat().st_size > 5000
    assert found["difference_s"] == -1.5 == sum(found["waterfall_s"].values())
    assert found["ops"] == {"matched": 8, "only_before": 0, "only_after": 0}
    code, out, _ = traincast("diff", *files)
    assert code == 0
    assert "compute attention" in out
    assert "8 ops are in both" in out


@pytest.mark.parametrize("name", ["none.json.gz", "other.json.gz"])
def test_diff_refuses_what_is_no_timeline(name, traincast, tmp_path):
    (tmp_path / "other.json.gz").write_bytes(b"nothing")
    perfetto.write(pipeline(), tmp_path / "a.json.gz")
    code, _, error = traincast("diff", tmp_path / "a.json.gz", tmp_path / name)
    assert code == 2
    assert name in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_long_names_of_kernels_leave_room_for_the_figures(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128>" * 3
    row = {"name": name, "before": 0, "after": 640, "before_s": 0.0, "after_s": 0.235}
    ops = {"matched": 0, "only_before": 3, "only_after": 640}
    found = {"before_s": 1.0, "after_s": 1.235, "difference_s": 0.235, "waterfall_s": {}}
    found |= {
        "ranks": {"before": 1, "after": 1},
        "changed": [{**row, "change_s": 0.235}],
        "ops": ops,
    }
    show(found, ("a", "b"))
    said = capsys.readouterr().out
    assert "0 / 640" in said
    assert "+0.235" in said.split("ops of 1 rank", 1)[-1]
    assert max(map(len, said.splitlines()[:-1])) <= columns
    assert "none has its name in both" in said


JOB = """
model = { layers = 4, hidden = 256, heads = 4, vocab = 512, sequence = 128 }
cluster = { topology = "dgx_a100", gpus = 8 }
parallelism = { tp = 2, pp = 2 }
training.global_batch = 4
simulation.fold = "FOLD"
"""


@pytest.mark.slow
def test_a_folded_recipe_is_compared_rank_by_rank(tmp_path):
    """Two ranks are simulated of one, all eight of the others, in the last of which one is slow."""
    texts = {way: JOB.replace("FOLD", way) for way in ("auto", "none")}
    texts["slow"] = texts["auto"] + "[[perturbations]]\nrank = 3\ncompute = 1.3\n"
    sides = {}
    for name, text in texts.items():
        (tmp_path / f"{name}.toml").write_text(text)
        sides[name] = read(tmp_path / f"{name}.toml")
    assert [len(side.timeline.graph.ranks()) for side in sides.values()] == [2, 8, 8]

    def found(before, after):
        of = [sides[before], sides[after]]
        return figures(difference(*(one.timeline for one in of), [one.stand_ins for one in of]))

    same, slow, unfolded = found("auto", "none"), found("auto", "slow"), found("none", "slow")
    assert max(abs(row["change_s"]) for row in same["changed"]) < 1e-9
    assert same["ranks"] == {"before": 8, "after": 8}
    assert slow["ops"] == unfolded["ops"]
    assert slow["ops"]["only_before"] == slow["ops"]["only_after"] == 0
    for ours, theirs in zip(slow["changed"], unfolded["changed"], strict=True):
        assert ours["name"] == theirs["name"]
        assert ours["change_s"] == pytest.approx(theirs["change_s"], rel=1e-9, abs=1e-12)


def test_files_of_unlike_many_ranks_are_said_to_be(traincast, tmp_path):
    one = pipeline()
    perfetto.write(one, tmp_path / "a.json.gz")
    perfetto.write(one, tmp_path / "b.json.gz", ranks=[0])
    code, out, _ = traincast("diff", tmp_path / "a.json.gz", tmp_path / "b.json.gz")
    assert code == 0
    assert "ops of 2 / 1 ranks" in out
    assert "sums over different numbers of ranks" in out
