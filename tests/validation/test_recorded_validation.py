"""Recorded pipelines, predicted: calls of torch's code, costs found again, errors, refusals."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schedules import Pair, Step, load
from schedules.csv import Move
from sim.graph import Graph
from sim.runs.schedule_run import run_plan
from sim.timeline import Timeline
from traces.recorded import run as recorded_run
from traces.schedule_csv import lowered
from traincast.main import main
from validation.processes.compared import OURS
from validation.processes.cores import on_cores
from validation.processes.pipelines import errors as recorded
from validation.processes.pipelines import sources
from validation.processes.pipelines.calls import Call, Compute, Post, Program, Wait, loop, runtime
from validation.processes.pipelines.costs import FOLDER, Costs, Quantiles, Size, save, spread
from validation.processes.pipelines.costs import load as read_costs
from validation.processes.pipelines.gaps import gaps
from validation.processes.pipelines.measure import check, fit
from validation.processes.pipelines.predict import interval, predict, priced, timeline
from validation.processes.pipelines.sources import sizes
from validation.processes.pipelines.workload import Stages, Workload, violations
from validation.processes.pipelines.workload import load as load_run
from validation.processes.predict import drawn

pytestmark = pytest.mark.slow

SHARED = Path(__file__).parents[3] / "shared/data/recorded"
needs_shared = pytest.mark.skipif(
    not SHARED.exists(), reason="the recordings of ../shared are not there"
)
TIMES = {"F": 5e-3, "I": 4e-3, "W": 3e-3}
MADE = {
    "head": 0.31e-3, "resume": 0.23e-3, "onward": 0.11e-3, "next": 0.02e-3, "enter": 0.03e-3,
    "loss": 0.37e-3, "finish": 0.53e-3, "over": 0.17e-3, "isend": 0.13e-3, "irecv": 0.13e-3,
    "arrival": 0.29e-3,
}  # fmt: skip
COSTS = Costs("made", {name: Quantiles((seconds,)) for name, seconds in MADE.items()})


def text(calls: list[Call]) -> str:
    """A program in short: steps, + and - for ends of messages begun, and ends waited for in []."""

    def ends(of: Post | Wait) -> str:
        return " ".join(f"{'+' if e.end == 'SEND' else '-'}{e.kind}{e.microbatch}" for e in of.ends)

    return " ".join(
        str(call.step) if isinstance(call, Compute)
        else ends(call) if isinstance(call, Post) else f"[{ends(call)}]"
        for call in calls
    )  # fmt: skip


def one_f_one_b(ranks: int, microbatches: int) -> Program:
    return loop("1F1B", load("one_f_one_b")(ranks, microbatches))


def test_1f1b_exchanges_messages_in_calls_that_it_waits_for() -> None:
    """By hand from torch's Schedule1F1B: warm-up, exchanges, cool-down."""
    first, last = one_f_one_b(2, 3)
    assert text(first) == (
        "0F0 +F0 0F1 [+F0] +F1 -B0 [+F1 -B0] 0B0 0F2 +F2 -B1 [+F2 -B1] 0B1 -B2 [-B2] 0B2"
    )
    assert text(last) == (
        "-F0 [-F0] 1F0 1B0 +B0 -F1 [+B0 -F1] 1F1 1B1 +B1 -F2 [+B1 -F2] 1F2 1B2 +B2 [+B2]"
    )


def test_gpipe_waits_for_its_sends_between_the_halves() -> None:
    first, last = loop("GPipe", load("gpipe")(2, 2))
    assert text(first) == "0F0 +F0 0F1 +F1 [+F0] [+F1] -B0 [-B0] 0B0 -B1 [-B1] 0B1"
    assert text(last) == "-F0 [-F0] 1F0 -F1 [-F1] 1F1 1B0 +B0 1B1 +B1 [+B0] [+B1]"


def test_the_runtime_sends_behind_both_members_of_a_pair() -> None:
    send = Move(0, "SEND", "F", 1)
    row = [Step(0, "F", 0), Pair(Step(0, "F", 1), Step(1, "B", 0)), send]
    (calls,) = runtime([row])
    assert text(calls) == "0F0 0F1 1B0 +F1 [+F1]"
    assert [call.paired for call in calls if isinstance(call, Compute)] == [False, True, True]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 5])
def test_without_costs_processes_run_as_the_schedule_does(ranks: int, microbatches: int) -> None:
    """Rendezvous that takes no time delays nothing in these orders, whoever runs them."""
    for name, program in (
        ("gpipe", loop("GPipe", load("gpipe")(ranks, microbatches))),
        ("one_f_one_b", one_f_one_b(ranks, microbatches)),
        ("one_f_one_b", runtime(lowered(load("one_f_one_b")(ranks, microbatches)))),
    ):
        found = timeline(Workload(program, Stages(TIMES), 64.0), Costs("free", {})).seconds
        plan = load(name)(ranks, microbatches)
        assert found == pytest.approx(run_plan(plan, TIMES).seconds, rel=1e-12)


def test_two_ranks_by_hand() -> None:
    """F0 → F0 B0 → B0: every cost is where it has to be."""
    of = MADE
    what = Workload(one_f_one_b(2, 1), Stages(TIMES), 64.0)
    forward, backward = TIMES["F"] + of["over"], TIMES["I"] + TIMES["W"] + of["over"]
    sent = of["head"] + forward + of["resume"]  # with its receive in one call
    arrived = sent + of["arrival"] + of["enter"] + forward + of["loss"] + backward
    ends = arrived + of["resume"] + of["arrival"] + of["enter"] + backward + of["finish"]
    assert timeline(what, COSTS).end.max() == pytest.approx(ends)


def test_a_large_message_is_copied_by_the_sender_and_moves_for_longer() -> None:
    """By hand: 2 ms of the sender's call, beside which it moves for 3 ms more."""
    made = Costs("made", COSTS.spreads, (Size(0.0, 0.0, 0.0), Size(100.0, 3e-3, 2e-3)))
    what = Workload(one_f_one_b(2, 1), Stages(TIMES), 100.0)
    (of, _), (small, _) = priced(what, made), priced(what._replace(bytes=0.0), made)
    sends = np.array([of.graph.op(i).name == "isend" for i in range(len(of.graph))])
    assert (of.seconds - small.seconds)[sends] == pytest.approx([2e-3, 2e-3])
    assert on_cores(of).seconds - on_cores(small).seconds == pytest.approx(2 * 3e-3)


def events(what: Workload, ran: Timeline, number: int, begin: float) -> list[dict[str, Any]]:
    """What the recorder would have written of a simulated step."""
    owner = {
        end: rank
        for rank, calls in enumerate(what.program)
        for call in calls
        if isinstance(call, Post)
        for end in call.ends
    }
    out = []

    def event(cat: str, name: str, rank: int, span: tuple[float, float], **args: Any) -> None:
        start, end = ((begin + second) * 1e6 for second in span)
        row = {"ph": "X", "cat": cat, "name": name, "pid": rank, "tid": 0, "ts": start}
        out.append({**row, "dur": end - start, "args": args})

    for rank, calls in enumerate(what.program):
        mine = iter(own_ops(ran.graph, rank))
        last, ahead = -1, next(mine)  # an op of the thread, and the next
        for call, gap in zip(calls, gaps(calls), strict=False):
            if isinstance(call, Wait):
                if gap:
                    last, ahead = ahead, next(mine)
                span = (float(ran.end[last]), float(ran.start[ahead]))
                event("comm_wait", "wait", rank, span, n=len(call.ends), step=number)
                continue
            ops = [next(mine) for _ in range(len(call.ends) if isinstance(call, Post) else 1)]
            last, ahead = ops[-1], next(mine)
            span = (float(ran.start[ops[0]]), float(ran.end[last]))
            if isinstance(call, Compute):
                event("compute", str(call.step), rank, span, step=number)
            else:
                kinds = [
                    ["isend" if e.end == "SEND" else "irecv", owner[e.other], 64] for e in call.ends
                ]
                event("comm_post", "post", rank, span, ops=kinds, step=number)
        event("step", f"step {number}", rank, (0.0, float(ran.end[ahead])))
    return out


def own_ops(graph: Graph, rank: int) -> list[int]:
    """The thread's ops of a rank, in order."""
    own = [graph.streams.index(name) for name in ("compute", "host")]
    found: list[int] = np.flatnonzero((graph.rank == rank) & np.isin(graph.stream, own)).tolist()
    return found


def record(
    path: Path, what: Workload, costs: Costs, schedule: str, chunks: int, **more: Any
) -> Path:
    """A file as the recorder writes them, of steps that our own engine ran."""
    world = len(what.program)
    of, spreads = priced(what, costs)
    ran = [on_cores(one) for one in (of, drawn(of, spreads, 1), drawn(of, spreads, 2))]
    rows = [row for k, one in enumerate(ran) for row in events(what, one, k, 2.0 * k)]
    cfg = {"world": world, "schedule": schedule, "M": 8, "v": chunks, "mode": "virtual", "rt": 1}
    about = {"cfg": {**cfg, "T": TIMES}, "world": world, "orders": {}, **more}
    about["machine"] = {"cores": what.cores or 64}
    about["step_ms_all"] = [one.end.max().item() * 1e3 for one in ran]
    path.write_bytes(gzip.compress(json.dumps({"otherData": about, "traceEvents": rows}).encode()))
    return path


def ends(ran: Timeline) -> list[float]:
    """When the thread of each rank was done."""
    rows = [i for i in range(len(ran.graph)) if ran.graph.op(i).name == "finish"]
    return [float(ran.end[i]) for i in rows]


def test_three_processes_share_two_cores() -> None:
    """By hand: all need a core at once, twice, and each has two thirds of one."""
    program: Program = [[Compute(Step(rank, "F", 0), False)] for rank in range(3)]
    works = MADE["head"] + MADE["over"] + MADE["finish"]
    found = timeline(Workload(program, Stages(TIMES), 0.0, cores=2), COSTS)
    assert ends(found) == pytest.approx([TIMES["F"] + 1.5 * works] * 3)
    alone = timeline(Workload(program, Stages(TIMES), 0.0), COSTS)
    assert ends(alone) == pytest.approx([TIMES["F"] + works] * 3)


def test_what_shares_cores_is_predicted_from_what_does(tmp_path: Path) -> None:
    """Costs of a recording on two cores have its own waits for them in them, and are that close."""
    made = Costs("made", COSTS.spreads, work=0.3e-3)
    one = Workload(one_f_one_b(4, 8), Stages(TIMES), 64.0, cores=2)
    plan = load("interleaved_1f1b")(4, 8)
    two = Workload(runtime(lowered(plan)), Stages(TIMES), 64.0, cores=2)
    first = record(tmp_path / "a.json.gz", one, made, "1F1B", 1)
    second = record(tmp_path / "b.json.gz", two, made, "Interleaved1F1B", 2)
    (of,) = recorded.validate([second], [first], draws=2).compared
    without = timeline(two._replace(cores=0), made).end.max()
    assert abs(of.error) < 0.015
    assert without / of.measured - 1.0 < -0.005
    assert of.causes["contention"] > 0.0


@pytest.fixture
def recordings(tmp_path: Path) -> tuple[Path, Path]:
    """1F1B by torch's loop, and interleaved stages by its runtime, at the same costs."""
    one = Workload(one_f_one_b(4, 8), Stages(TIMES), 64.0)
    plan = load("interleaved_1f1b")(4, 8)
    two = Workload(runtime(lowered(plan)), Stages(TIMES), 64.0)
    return (
        record(tmp_path / "a.json.gz", one, COSTS, "1F1B", 1),
        record(tmp_path / "b.json.gz", two, COSTS, "Interleaved1F1B", 2),
    )


def test_costs_are_found_again_and_predict_another_schedule(recordings: tuple[Path, Path]) -> None:
    """Every constant that made a recording is recovered from it, and another is then predicted."""
    first, second = recordings
    found = fit([recorded_run.read(first)], "made")
    assert {name: found.spreads[name].mean for name in MADE} == pytest.approx(MADE, abs=2e-9)
    assert found.busier == pytest.approx(1.0, abs=1e-6)
    (of,) = recorded.validate([second], [first], draws=2).compared
    assert of.error == pytest.approx(0.0, abs=1e-6)
    assert of.violations == () or list(of.violations) == []
    assert max(abs(r.predicted_start - r.recorded_start) for r in of.rows) < 1e-6
    assert sum(of.causes.values()) == pytest.approx(of.measured)
    assert of.causes["schedule"] == pytest.approx(
        run_plan(load("interleaved_1f1b")(4, 8), TIMES).seconds
    )
    assert of.causes["contention"] == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize(("rt", "counts"), [(1, False), (0, True)])
def test_a_late_waker_counts_only_without_priority(
    recordings: tuple[Path, Path], rt: int, counts: bool
) -> None:
    """With it, one that wakes ten times as late waited for a core, which is modelled."""
    content = json.loads(gzip.decompress(recordings[0].read_bytes()))
    content["otherData"]["cfg"]["rt"] = rt
    late = next(r for r in content["traceEvents"] if r["cat"] == "compute")
    late["dur"] += 9e6 * MADE["over"]
    recordings[0].write_text(json.dumps(content))
    found = fit([recorded_run.read(recordings[0])], "made").spreads["over"].mean
    assert (found > 1.01 * MADE["over"]) == counts


def test_an_order_that_is_not_the_plan_is_told(recordings: tuple[Path, Path]) -> None:
    content = json.loads(gzip.decompress(recordings[0].read_bytes()))
    rows = [r for r in content["traceEvents"] if r["cat"] == "compute" and r["pid"] == 2]
    rows[4]["name"], rows[5]["name"] = rows[5]["name"], rows[4]["name"]
    recordings[0].write_text(json.dumps(content))
    found = violations(recorded_run.read(recordings[0]))
    assert found == ["step 0, rank 2, position 4: 2F3 ran where the plan has 2B1"]


def test_calls_that_torch_does_not_make_are_refused(recordings: tuple[Path, Path]) -> None:
    content = json.loads(gzip.decompress(recordings[0].read_bytes()))
    content["traceEvents"].remove(
        next(r for r in content["traceEvents"] if r["cat"] == "comm_wait")
    )
    recordings[0].write_text(json.dumps(content))
    with pytest.raises(ValueError, match="call 3 is not the one that torch makes there"):
        fit([recorded_run.read(recordings[0])], "made")


def test_predictions_are_told_without_the_factor_too(recordings: tuple[Path, Path]) -> None:
    """Timed steps a tenth longer than traced ones stretch costs; without, the second is exact."""
    first, second = recordings
    content = json.loads(gzip.decompress(first.read_bytes()))
    steps = content["otherData"]["step_ms_all"]
    content["otherData"]["step_ms_all"] = [1.1 * ms for ms in steps]
    first.write_text(json.dumps(content))
    (found,) = recorded.summary(recorded.validate([second], [first], draws=1))["classes"]
    assert found["busier"] > 1.0
    assert found["mean"] > 0.01
    assert found["max_unstretched"] == pytest.approx(0.0, abs=1e-6)


def test_what_costs_were_fitted_to_is_never_predicted(
    recordings: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Named by itself it is refused; in a folder it is left out."""
    first, _ = recordings
    with pytest.raises(SystemExit) as stopped:
        main(["validate", "recorded", str(first), "--calibrate", str(first)])
    assert stopped.value.code == 2
    assert "cannot show how good they are" in capsys.readouterr().err
    args = ["--calibrate", str(first), "--draws", "1", "--json"]
    with pytest.raises(SystemExit) as done:
        main(["validate", "recorded", str(first.parent), *args])
    assert not done.value.code
    found = json.loads(capsys.readouterr().out)
    assert found["left_out"] == ["a"]
    assert [run["id"] for run in found["runs"]] == ["b"]


def test_the_printed_row_says_recorded_predicted_error_and_starts(
    recordings: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its figures are those of the summary, in the order that its head names."""
    first, second = recordings
    (run,) = recorded.summary(recorded.validate([second], [first], draws=1))["runs"]
    with pytest.raises(SystemExit) as done:
        main(["validate", "recorded", str(second), "--calibrate", str(first), "--draws", "1"])
    assert not done.value.code
    lines = capsys.readouterr().out.splitlines()
    head = next(line for line in lines if "recorded, ms" in line)
    row = next(line for line in lines if "\u2502 b " in line)
    assert [cell.strip() for cell in head.strip("\u2503").split("\u2503")] == [
        "run", "recorded, ms", "predicted, ms", "error", "starts, max"
    ]  # fmt: skip
    assert [cell.strip() for cell in row.strip("\u2502").split("\u2502")] == [
        "b", f"{1e3 * run['measured']:.1f}", f"{1e3 * run['predicted']:.1f}",
        f"{run['error']:+.2%}", f"{run['start_error']['max']:.2%}",
    ]  # fmt: skip


def test_frozen_costs_come_back_and_draws_repeat(tmp_path: Path) -> None:
    spreads = {name: spread(np.linspace(0.5, 2.0, 37) * seconds) for name, seconds in MADE.items()}
    made = Costs("made", spreads, (Size(0.0, 0.0, 0.0), Size(64.0, 1e-4, 2e-4)), 0.0, {"a": "b"})
    save(made, tmp_path / "made.toml", "hand")
    back = read_costs(tmp_path / "made.toml")
    assert back.spreads["over"].bins == pytest.approx(made.spreads["over"].bins)
    assert back.more(128.0) == pytest.approx((128.0, 2e-4, 4e-4))
    what = Workload(one_f_one_b(3, 4), Stages(TIMES), 64.0)
    one, two, other = (predict(what, made, 5, seed) for seed in (3, 3, 4))
    low, high = interval(what, made, one, 3)
    assert (one.seconds, low, high) == (two.seconds, *interval(what, made, two, 3))
    assert one.seconds != other.seconds
    assert low <= one.seconds <= high


def test_a_spread_has_the_mean_of_its_samples() -> None:
    samples = np.random.default_rng(0).lognormal(0.0, 1.0, 53)
    found = spread(samples)
    assert found.mean == pytest.approx(samples.mean())
    assert list(found.bins) == sorted(found.bins)


@needs_shared
def test_recorded_calls_are_those_of_torch() -> None:
    """In every recording each rank makes, call by call, the calls that its program has."""
    files = sorted((SHARED / "chrome").glob("*.json.gz"))
    assert len(files) == 13
    for file in files:
        run = recorded_run.read(file)
        what = load_run(run)
        for step in run.steps:
            check(what, step, run.name)
        assert violations(run) == []
        given = [[op[0] for call in calls for op in call.ops] for calls in run.steps[0].calls]
        posts = [
            [e for c in calls if isinstance(c, Post) for e in c.ends] for calls in what.program
        ]
        kinds = [["isend" if e.end == "SEND" else "irecv" for e in ends] for ends in posts]
        assert given == kinds


@needs_shared
def test_recorded_steps_are_predicted_by_frozen_costs() -> None:
    """The bars: FIFO runs 1.5 % in the mean, 4 % at most, starts within 3 %; real layers 8 %."""
    found = recorded.summary(recorded.validate([SHARED / "chrome"], draws=3))
    assert sorted(found["left_out"]) == ["real_1F1B_P2_M8", "v4k-nort_1F1B_P4_M8", "v4k_1F1B_P4_M8"]
    fifo, plain, real = found["classes"]
    assert (fifo["count"], plain["count"], real["count"]) == (7, 2, 1)
    assert fifo["mean"] < 0.015
    assert max(fifo["max"], plain["max"]) < 0.04
    assert real["max"] < 0.08
    for run in found["runs"]:
        assert run["order_violations"] == []
        if run["class"] == "fifo":
            assert run["start_error"]["max"] < 0.03
        ranks = zip(run["recorded_ranks"], run["predicted_ranks"], strict=True)
        assert all(abs(one["bubble"] - two["bubble"]) < 0.05 for one, two in ranks)


OWN = OURS / "virtual_one_f_one_b_class_P4_M8.json.gz"


@pytest.mark.parametrize(
    "name",
    ["interleaved_zero_bubble_class_P2_M8", "gpipe_class_P8_M16", "gpipe_P4_M8", "v_half_P4_M8"],
)
def test_other_numbers_of_ranks_are_predicted_from_our_1f1b(name: str) -> None:
    """Calibrated on 4 ranks alone: 2 and 8 ranks, and CSV, within 2.5 %, starts within 3 %."""
    path = OURS / f"virtual_{name}.json.gz"
    (run,) = recorded.summary(recorded.validate([path], [OWN], draws=5))["runs"]
    assert abs(run["error"]) < 0.025
    assert run["start_error"]["max"] < 0.03
    assert run["order_violations"] == []


def test_eight_ranks_on_two_cores_are_not_predicted_as_if_on_many() -> None:
    """What sharing cores explains: else the step comes out more than 2.5 % short."""
    run = recorded_run.read(OURS / "virtual_gpipe_class_P8_M16.json.gz")
    what, costs = load_run(run), sources.calibrate([OWN])["fifo"]
    assert what.cores == 2
    without = predict(what._replace(cores=0), costs, 5).seconds / np.median(run.seconds) - 1.0
    assert without < -0.025


@needs_shared
def test_messages_of_a_mebibyte_are_predicted_from_4_kib_and_a_sweep() -> None:
    path = OURS / "virtual_interleaved_zero_bubble_class_P4_M8_1MiB.json.gz"
    calibration = [OWN, SHARED / "gloo_p2p_rt.json"]
    (run,) = recorded.summary(recorded.validate([path], calibration, draws=5))["runs"]
    assert abs(run["error"]) < 0.015
    assert run["start_error"]["max"] < 0.03


@needs_shared
def test_frozen_costs_are_those_of_their_sources() -> None:
    """What is committed is what the named recording and sweep give."""
    run = recorded_run.read(SHARED / "chrome/v4k_1F1B_P4_M8.json.gz")
    made = fit([run], "fifo", sizes(SHARED / "gloo_p2p_rt.json"))
    kept = read_costs(FOLDER / "fifo.toml")
    assert kept.sources == made.sources
    assert {k: s.mean for k, s in kept.spreads.items()} == pytest.approx(
        {k: s.mean for k, s in made.spreads.items()}, abs=1e-9
    )
    assert kept.busier == pytest.approx(made.busier, abs=1e-4)


def test_gaps_of_a_loop_by_hand() -> None:
    (first, _) = one_f_one_b(2, 2)
    # 0F0 +F0 0F1 [+F0] then +F1 -B0 in one call, [..] 0B0 -B1 [-B1] 0B1, end
    assert [*gaps(first)] == [
        "head", "resume", "next", "", "resume", "next", "enter", "resume", "next", "enter", "finish"
    ]  # fmt: skip
