"""What profiled steps on CPU processes consisted of, by hand and from real traces."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import cpu_steps
from traces.cpu_steps import Leaf, Moved, RankStep, distilled, source
from traces.kineto import cpu_waits

MM = {"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]}
ADD = {"Input Dims": [[4], [4], []], "Input type": ["float", "float", "Scalar"]}
SIZE = {"Input Dims": [[100]], "Input type": ["float"]}


def step(kineto, rank: int, at: float, longer: float) -> list:
    """A multiplication, an all-reduce beside its backward and after it, an update of 10 us.

    Gloo's barrier lets rank 0 go at ``at`` and rank 1, with which the step begins, at 2.
    """

    def op(name: str, start: float, end: float, tid: int = 100, cat: str = "cpu_op", **args):
        return kineto.event(cat, name, at + start, end - start, tid, **args)

    def mark(name: str, start: float, end: float, tid: int = 200, **args):
        return op(name, start, end, tid, "user_annotation", **args)

    first, call, back, wait, over = [(1, 44, 50, 80, 102), (12, 54, 60, 86, 104)][rank]
    begins, inner = (5, 25) if rank == 0 else (2, 22)
    return [
        op("c10d::barrier", -25, -22),
        mark("gloo:barrier", -20, 2 * rank),
        op("aten::mm", first, first + 40 + (rank == 0), **MM),
        op("aten::resolve_conj", first + 2, first + 4),
        op("c10d::allreduce_", call, call + 4),
        mark("gloo:all_reduce", call + 2, 90, **SIZE),
        op("autograd::engine::evaluate_function: MmBackward0", back, wait),
        op("aten::mm", back + begins, back + inner, **MM),
        mark("Optimizer.step#SGD.step", 92, over, tid=100),
        op("aten::add_", 93, over - 2, **ADD),
        mark("Optimizer.zero_grad#SGD.zero_grad", over + 1, 106 + 4 * rank + longer, tid=100),
    ]


@pytest.fixture
def summary(kineto, tmp_path) -> Path:
    """Two ranks and two steps; rank 1's file counts from half a millisecond later."""
    for rank in (0, 1):
        late = 500 * rank
        events = [*step(kineto, rank, 1000 - late, 0), *step(kineto, rank, 2000 - late, 10 * rank)]
        info = {"rank": rank, "world_size": 2, "backend": "gloo"}
        kineto.write(events, None, f"ddp_rank{rank}.json.gz", distributedInfo=info,
                     baseTimeNanoseconds=7_000_000 + 1000 * late)  # fmt: skip
    path = tmp_path / "ddp_summary.json"
    ranks = [{"rank": rank, "steps": [[0, 5_000 * rank, 0, 0, 90_000 + rank]]} for rank in (0, 1)]
    path.write_text(json.dumps({"mode": "ddp", "ranks": ranks, "command": "c"}))
    return path


def us(*values: float) -> list[float]:
    return [value / 1e6 for value in values]


def test_steps_by_hand(summary):
    """Math, host and wait add up; a wait begins where the backward's operator ended.

    The call of the all-reduce is host, as the thread goes on before that has ended.
    """
    run = cpu_steps.read(summary)
    assert (run.name, run.mode, run.world) == ("ddp", "ddp", 2)
    assert run.step_s == pytest.approx(us(85.001))
    assert run.profiled_s == pytest.approx(us(108, 118))
    assert list(run.ranks[0]) == pytest.approx([0, 0, *us(104, 65, 29, 10, 44, 10, 20)])
    assert list(run.ranks[1]) == pytest.approx([0, 1, *us(108, 67, 37, 4, 34, 4, 20)])
    assert list(run.ranks[3]) == pytest.approx([1, 1, *us(118, 67, 47, 4, 34, 4, 20)])
    for one in run.ranks:
        assert one.math_s + one.host_s + one.wait_s == pytest.approx(one.seconds, abs=1e-12)


def test_noise_is_own_seconds_over_their_median(summary):
    """Forward products of 38 us, updates of 7 and 9; the rest is beside a collective."""
    run = cpu_steps.read(summary)
    assert list(run.noise) == sorted(run.noise)
    assert {*run.noise} == {7 / 8, 1.0, 9 / 8}


def test_collectives_and_operators_by_hand(summary):
    """An all-reduce moves from when both are there; a leaf's own time is without its child's."""
    run = cpu_steps.read(summary)
    assert [one.step for one in run.moved] == [0, 1]
    name, *numbers = run.moved[0][2:]
    assert name == "all_reduce"
    assert numbers == pytest.approx([400.0, *us(54, 88, 44, 19.5)])
    shapes = ((2, 3), (3, 4))
    assert [leaf[:3] for leaf in run.leaves] == [
        ("aten::add_", ((4,), (4,)), "optimizer"),
        ("aten::mm", shapes, "backward"),
        ("aten::mm", shapes, "forward"),
    ]
    update, backward, forward = (list(leaf[3:]) for leaf in run.leaves)
    assert update == pytest.approx([1.0, *us(8, 8), 4])
    assert backward == pytest.approx([1.0, *us(20), np.nan, 0], nan_ok=True)
    assert forward == pytest.approx([1.0, *us(38.5, 39), 2])  # rank 1's is beside the all-reduce


def test_our_file_says_the_same(summary, tmp_path):
    """Read back, a distilled run is the run, and shows its shorter step as the traces do."""
    measured = source.read(summary)
    path = distilled.write(tmp_path / "ddp.json.gz", measured)
    again = cpu_steps.read(path)
    assert repr(replace(again, digest="")) == repr(replace(measured.run, digest=""))
    assert again.digest != measured.run.digest
    assert cpu_steps.recognises(path)
    assert cpu_steps.recognises(summary)
    assert not cpu_steps.recognises(tmp_path / "ddp_rank0.json.gz")
    assert distilled.write(tmp_path / "b.json.gz", measured).read_bytes() == path.read_bytes()
    shown, whole = cpu_steps.timeline(path), cpu_steps.timeline(summary, 0)
    assert shown.to_pandas().equals(whole.to_pandas())
    frame = shown.to_pandas().query("rank == 1")
    rows = [(r.stream, r.name, r.phase, round(r.start * 1e6), round(r.end * 1e6))
            for r in frame.itertuples()]  # fmt: skip
    assert rows == [
        ("cpu", "aten::mm", "F", 10, 50),
        ("cpu", "aten::mm", "B", 60, 80),
        ("cpu", "aten::add_", "O", 91, 100),
        ("gloo 0", "all_reduce", "", 54, 88),
    ]
    assert len(shown.graph.part_work) == 1
    with pytest.raises(ValueError, match="shows step 0, not 1"):
        cpu_steps.timeline(path, 1)


def test_what_is_no_run_is_refused_in_a_sentence(summary, tmp_path, kineto):
    other = tmp_path / "other.json"
    other.write_text("{}")
    with pytest.raises(ValueError, match="is not a file of CPU steps"):
        cpu_steps.read(other)
    with pytest.raises(ValueError, match="has steps 0 to 1, not 2"):
        cpu_steps.timeline(summary, 2)
    events = step(kineto, 1, 500, 0)
    info = {"rank": 1, "world_size": 2}
    kineto.write(events, None, "ddp_rank1.json.gz", distributedInfo=info)
    with pytest.raises(ValueError, match=r"traces of one run have \[1, 2\] barriers"):
        cpu_steps.read(summary)


def test_the_profilers_first_steps_are_left_out(summary):
    about = json.loads(summary.read_text())
    summary.write_text(json.dumps({**about, "config": {"profiled_warm": 1, "blocks": 2}}))
    run = cpu_steps.read(summary)
    assert run.profiled_s == pytest.approx(us(118))
    assert {one.step for one in (*run.moved, *run.ranks)} == {0}
    assert run.config["blocks"] == 2


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12))
def test_pieces_are_of_the_innermost_operator(found):
    """Of properly nested operators: at every instant the one that began last."""
    spans: list[tuple[int, int]] = []
    for start, length in found:  # keep what nests
        end = start + length
        if all(b <= start or end <= a or (a <= start and end <= b) or (start <= a and b <= end)
               for a, b in spans) and (start, end) not in spans and length:  # fmt: skip
            spans.append((start, end))
    start, end = np.array(spans, np.int64).reshape(-1, 2).T
    of = cpu_waits.pieces(start, end, -1, 50)
    owner = np.full(51, -1)
    for k in sorted(range(len(spans)), key=lambda k: spans[k][0] - spans[k][1]):
        owner[spans[k][0] + 1 : spans[k][1] + 1] = k  # shorter ones later
    again = np.repeat(of.owner, of.end - of.start)
    assert again.tolist() == owner.tolist()
    inside = [[i for i, (c, d) in enumerate(spans) if i != k and c <= a and b <= d]
              for k, (a, b) in enumerate(spans)]  # fmt: skip
    nearest = [min(some, key=lambda i: spans[i][1] - spans[i][0], default=-1) for some in inside]
    assert of.parent.tolist() == nearest


def test_a_tensors_own_dispatch_is_no_computing():
    """An operator of a DTensor, 0 to 50, that calls Python, 10 to 40, that multiplies, 20 to 30.

    A collective from 5 to 16 ends while Python runs, so it waits from 10; one from 22 to 24 is
    beside the multiplication, and one from 43 to 47 is waited for as long as it is there.
    """
    names = ["aten::mm", "PythonSubclass", "aten::mm", "aten::resolve_conj"]
    start, end = np.array([[0, 50], [10, 40], [20, 30], [21, 22]], np.int64).T
    of = cpu_waits.pieces(start, end, 0, 60)
    assert cpu_waits.computing(of, names).tolist() == [False, False, True, False]
    begins, ends = np.array([[5, 16], [22, 24], [43, 47]], np.int64).T
    found = cpu_waits.waiting(of, names, begins, ends)
    assert [found.start.tolist(), found.end.tolist()] == [[10, 43], [16, 47]]


def test_a_rank_may_move_before_the_step_begins(summary, kineto):
    """Rank 0 leaves the barrier at 0 and calls at once; its collective counts from the begin, 2."""
    events = [
        *step(kineto, 0, 1000, 0)[:2],
        kineto.event("cpu_op", "c10d::allreduce_", 1000, 1),
        kineto.event("user_annotation", "gloo:all_reduce", 1001, 89, 200, **SIZE),
        kineto.event("user_annotation", "Optimizer.step#SGD.step", 1092, 8),
        *step(kineto, 0, 2000, 0),
    ]
    info = {"rank": 0, "world_size": 2}
    kineto.write(
        events, None, "ddp_rank0.json.gz", distributedInfo=info,
        baseTimeNanoseconds=7_000_000,
    )  # fmt: skip
    run = cpu_steps.read(summary)
    assert run.moved[0].first_s == pytest.approx(-1e-6)
    assert run.moved[0].begin_s == pytest.approx(54e-6)
    assert run.ranks[0].moving_s == run.ranks[0].exposed_s == pytest.approx(88e-6)


SHARED_RUNS = {  # collectives of a step: of 8 blocks, 789,760 parameters each; buckets of 4 MB
    "ddpnohook": {"all_reduce": 7},
    "fsdp2": {"all_gather": 16, "reduce_scatter": 8},
    "tp": {"all_reduce": 15},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", SHARED_RUNS)
def test_real_runs(shared, mode):
    """Parts add up, sizes are found, every operator is there in each step and on each rank."""
    run = cpu_steps.read(shared / f"recorded/kineto/{mode}_summary.json")
    assert (len(run.step_s), len(run.profiled_s)) == (5, 2)
    sizes = {"blocks": 8, "d": 256, "ffn": 1024, "seq": 128, "mb": 4, "activation": "gelu"}
    assert sizes.items() <= run.config.items()
    assert run.config["heads"] == (0 if mode == "tp" else 4)  # which has only an MLP
    assert run.config["optimizer"] == "SGD"
    for one in run.ranks:
        assert one.math_s + one.host_s + one.wait_s == pytest.approx(one.seconds, abs=1e-9)
        assert min(one[2:]) >= 0
    for number in (0, 1):
        assert Counter(m.collective for m in run.moved if m.step == number) == SHARED_RUNS[mode]
    assert all(leaf.count == round(leaf.count) for leaf in run.leaves)
    total = sum(leaf.count * leaf.mean_s for leaf in run.leaves)
    assert total == pytest.approx(np.mean([one.math_s for one in run.ranks]), rel=2e-3)
    exposed = sum(one.exposed_s for one in run.ranks) / sum(one.moving_s for one in run.ranks)
    low, high = {"ddpnohook": (0.0, 0.1), "fsdp2": (0.95, 1.0), "tp": (0.8, 1.0)}[mode]
    assert low <= exposed <= high
    parameters = sum(m.bytes for m in run.moved if m.collective in ("all_reduce", "reduce_scatter"))
    if mode != "tp":
        assert parameters / 2 == 4 * 8 * 789_760
    assert isinstance(run.leaves[0], Leaf)
    assert isinstance(run.moved[0], Moved)
    assert isinstance(run.ranks[0], RankStep)


def changed(path, tmp_path, *keys_and_value):
    """Our file with one value in it replaced."""
    *keys, last, value = keys_and_value
    file = at = json.loads(gzip.decompress(path.read_bytes()))
    for key in keys:
        at = at[key]
    at[last] = value
    out = tmp_path / "changed.json.gz"
    out.write_bytes(gzip.compress(json.dumps(file).encode()))
    return out


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("step_s", []), "step_s is (); tuple should have at least 1 item"),
        (("step_s", "ab"), "step_s[0] is 'a'; input should be a valid number"),
        (("profiled_s", 0, -1.0), "profiled_s[0] is -1.0; input should be greater than 0"),
        (("noise", [0.0]), "noise[0] is 0.0"),
        (("mode", 3), "mode is 3; input should be a valid string"),
        (("config", []), "config is []"),
        (("facts", {"allreduce_us": 5}), "facts.allreduce_us is 5"),
        (("leaves", []), "leaves is ()"),
        (("leaves", 0, 3, -5), "leaves[0].count is -5"),
        (("leaves", 2, 5, None), "it does not say what an operator took alone"),
        (("moved", 0, 3, "x"), "moved[0].bytes is 'x'"),
        (("moved", 0, 5, 0.0), "a collective of it ends before it begins"),
        (("moved", 0, 0, 9), "of a step beyond the 2"),
        (("ranks", []), "its ranks are not those of 2 profiled steps on 2 ranks"),
        (("world", 10**12), "its ranks are not those of 2 profiled steps"),
        (("ranks", 0, 1, 1), "its ranks are not those of 2 profiled steps"),
    ],
)
def test_values_that_cannot_be_are_refused(summary, tmp_path, change, sentence):
    path = distilled.write(tmp_path / "ddp.json.gz", source.read(summary))
    cpu_steps.read(changed(path, tmp_path, "mode", "ddp"))
    with pytest.raises(ValueError, match=f"is not a whole run: .*{re.escape(sentence)}"):
        cpu_steps.read(changed(path, tmp_path, *change))


@pytest.mark.parametrize(
    "change", [{"ranks": []}, {"config": [1]}, {"ranks": [{"steps": 7}, {"steps": 7}]}]
)
def test_a_summary_that_is_none_is_refused_in_a_sentence(summary, change):
    summary.write_text(json.dumps({**json.loads(summary.read_text()), **change}))
    with pytest.raises(ValueError, match="is not a summary of a recorded training"):
        cpu_steps.read(summary)


def test_a_summary_whose_events_are_none_is_refused_in_a_sentence(summary):
    about = json.loads(summary.read_text())
    about["ranks"][0]["events"] = 7
    summary.write_text(json.dumps(about))
    with pytest.raises(ValueError, match="is not a summary of a recorded training"):
        cpu_steps.read(summary)
