"""Profiler files that lie: each kind of impossible row is repaired, counted and said."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from schedules.input_error import InputError
from traces.kineto import rank as ranks_file
from traces.kineto import sanity
from traces.kineto.fields import nanoseconds
from traces.kineto.rank import read as read_rank
from traces.reading import read
from traces.recording import Selection, no_report
from traces.replay import replays
from traincast.commands.parts import recordings

pytestmark = pytest.mark.slow

DAMAGED = (
    "05_segfault_huge_int.json", "trace_137_analyze", "trace_233_replay", "trace_248_replay",
    "trace_258_analyze", "trace_266_replay", "trace_293_replay", "trace_321_replay",
    "trace_345_analyze", "trace_365_analyze", "trace_368_analyze", "trace_385_analyze",
    "trace_448_replay", "trace_45_analyze", "trace_757_analyze", "trace_794_analyze",
    "trace_798_analyze", "trace_872_analyze", "trace_908_analyze", "trace_955_analyze",
    "trace_980_replay",
)  # fmt: skip
GROUP = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 8}


def figures(*paths: Path, selection: Selection = Selection()):  # noqa: B008
    """What --json shows."""
    return recordings.figures(read(paths, selection))


def step(kineto, number: int, at: int, late: int = 0, ranks: object = (0, 1)):
    """A step of 1,000 us: a GEMM of 300 us and an all-reduce that ends 500 us behind the begin."""
    more = {**GROUP, "Process Group Ranks": str([*ranks]), "Group size": len([*ranks])}
    first = 10 * number
    return [
        kineto.event("user_annotation", f"ProfilerStep#{number}", at, 990),
        *kineto.launched("gemm", at + 10, at + 20, 300 + late, first + 1),
        kineto.call("cudaLaunchKernel", at + 20, 5, first + 2),
        kineto.kernel(
            "ncclDevKernel_AllReduce", at + 330 + late, 170 - late, first + 2, stream=9, **more
        ),
    ]


def test_a_kernel_at_time_0_is_left_out(kineto):
    """CUPTI's "not filled in"."""
    events = [*step(kineto, 3, 10**9), *step(kineto, 4, 10**9 + 1000)]
    events[2] |= {"ts": 0, "dur": 0}
    found = figures(kineto.write(events))
    assert (found["gpu_ops"], found["span_s"]) == (3, pytest.approx(1.48e-3))
    assert "rank0.json: 1 GPU op with no time left out" in found["warnings"][0]


def test_ops_far_behind_the_profiler_are_left_out_and_late_ones_stay(kineto):
    events = [*step(kineto, 3, 10**9), *kineto.launched("late", 10**9 + 30, 11 * 10**8, 5, 99)]
    assert figures(kineto.write(events))["gpu_ops"] == 3
    events[-1]["ts"] = 10**9 + 2 * 3600 * 10**6
    assert figures(kineto.write(events))["gpu_ops"] == 2


def test_events_of_the_host_far_from_all_others_are_left_out(kineto):
    events = [*step(kineto, 3, 10**11), kineto.call("cudaDeviceSynchronize", 0, 5)]
    found = figures(kineto.write(events))
    assert found["span_s"] == pytest.approx(490e-6)
    assert "1 event of the host left out" in found["warnings"][0]


def test_durations_below_0_are_nothing(kineto):
    events = step(kineto, 3, 10**6)
    events[2]["dur"] = -5
    found = figures(kineto.write(events))
    assert found["gpu_ops"] == 2
    assert "1 event with a duration below 0 taken to last no time" in found["warnings"][0]


@pytest.mark.parametrize("over", [3, 19, 40, 2_000_000])
def test_a_duration_that_overruns_the_next_of_its_stream_is_cut_there(kineto, over):
    """By some microseconds it stays: that is programmatic dependent launch."""
    events = [kineto.launched(f"k{n}", 10 * n, 100 + 50 * n, 50, n + 1) for n in range(20)]
    events[7][1]["dur"] = 50 + over
    path = kineto.write([*chain.from_iterable(events)])
    trace = sanity.sound(read_rank(path, no_report))
    assert [op.end - op.start for op in trace.gpu][7] == 50_000 + (over * 1000 if over < 20 else 0)
    assert len(trace.warnings) == (over >= 20)
    if over >= 20:
        assert (
            "1 GPU op cut where the next one of the stream begins (the longest: k7, by"
            in (trace.warnings[0])
        )


def test_kernels_of_one_graph_and_streams_of_many_at_a_time_are_not_cut(kineto):
    """Kernels of a graph have the number of its launch, and run beside each other."""
    graph = [kineto.kernel(f"g{n}", 100 + n, 500, 1) for n in range(5)]
    path = kineto.write([kineto.call("cudaGraphLaunch", 10, 5, 1), *graph])
    assert sanity.sound(read_rank(path, no_report)).warnings == []
    beside = [kineto.kernel(f"k{n}", 100 * n, 250, n + 1) for n in range(40)]
    trace = sanity.sound(read_rank(kineto.write(beside), no_report))
    assert {op.end - op.start for op in trace.gpu} == {250_000}
    assert "stream 7: 39 of 40 ops run beside the next" in trace.warnings[0]


def test_the_last_of_a_stream_takes_what_its_like_take(kineto):
    events = [kineto.launched("gemm", 10 * n, 100 + 50 * n, 30 + n, n + 1) for n in range(5)]
    events[4][1]["dur"] = 3_000_000
    trace = sanity.sound(read_rank(kineto.write([*chain.from_iterable(events)]), no_report))
    assert trace.gpu[-1].end - trace.gpu[-1].start == 31_500
    assert "1 event cut that outlast everything else" in trace.warnings[0]


def test_the_same_event_twice_is_one(kineto):
    events = [*step(kineto, 3, 10**6), *step(kineto, 3, 10**6)[2:3]]
    found = figures(kineto.write(events))
    assert found["gpu_ops"] == 2
    assert "1 event left out, as the file already has the same event" in found["warnings"][0]


def test_a_rank_that_is_named_and_not_there_leaves_no_figure_of_stragglers(kineto):
    paths = [
        kineto.write(step(kineto, 3, 1000, late, range(4)), rank)
        for rank, late in ((0, 0), (1, 20), (3, 0))
    ]
    found = figures(*paths)
    late = found["stragglers"]
    assert (late["slowdown"], late["bound"]) == (None, None)
    assert "all ranks that were read may have waited for rank 2" in late["unknown"]
    (said,) = found["warnings"]
    assert said.startswith("rank 2 was not read, though process groups name it: 1 of 1 collectives")
    assert "read have begun, these take 150.0 us on average" in said  # from 1,350 to 1,500 us
    (said,) = figures(paths[0])["warnings"]
    assert said.startswith("ranks 1, 2, 3 were not read")
    assert (
        "read have begun, these take 170.0 us on average, part of which may be waiting for them"
        in said
    )
    whole = figures(*paths, kineto.write(step(kineto, 3, 1000, 30, range(4)), 2))
    assert whole["warnings"] == []
    assert whole["stragglers"]["slowdown"] is not None
    some = figures(*paths, selection=Selection(ranks=[0, 1]))  # rank 3 is there, and not asked for
    assert some["warnings"][0].startswith("rank 2 was not read")


def test_collectives_are_matched_inside_steps_of_one_number(kineto):
    """By their order alone the clocks would seem a step apart."""
    first = [*step(kineto, 3, 1000), *step(kineto, 4, 2000)]
    second = [*step(kineto, 4, 2000, 7), *step(kineto, 5, 3000)]
    paths = [kineto.write(first, 0), kineto.write(second, 1)]
    found = figures(*paths)
    assert found["clocks"]["offset_s"] == {"0": 0.0, "1": 0.0}
    assert [one["step"] for one in found["steps"]] == [3, 4, 5]
    assert (found["collectives"], found["collectives_matched"]) == (3, 1)
    assert found["warnings"][0].startswith(
        "ranks recorded different steps: step 3 by rank 0 alone, step 5 by rank 1 alone, only step "
        "4 by all"
    )
    assert found["stragglers"]["slowdown"] is None
    assert "--step 4 selects one that all recorded" in found["stragglers"]["unknown"]
    alone = figures(*paths, selection=Selection(step=4))
    assert (alone["collectives"], alone["collectives_matched"]) == (1, 1)
    assert alone["stragglers"]["slowdown"] is not None


def test_a_rank_without_steps_has_those_of_the_others(kineto):
    first = [*step(kineto, 3, 1000), *step(kineto, 4, 2000)]
    second = [
        e for e in [*step(kineto, 3, 51000), *step(kineto, 4, 52000)] if "Pro" not in e["name"]
    ]
    paths = [kineto.write(first, 0), kineto.write(second, 1)]
    made = read(paths)
    graph = made.timeline.graph
    assert made.clock_offsets[1] == pytest.approx(-50e-3)
    for rank in (0, 1):
        mine = (graph.rank == rank) & np.array(["gemm" in graph.names[n] for n in graph.name])
        assert graph.step[mine].tolist() == [0, 1]
    assert made.warnings[0].startswith("rank 1 recorded no ProfilerStep#, but others did")
    assert read(paths, Selection(step=4)).counts["collectives"] == 1


def merged(kineto, processes: bool = True) -> list:
    """Two ranks in one file: processes 4000 and 4001 on GPUs 0 and 1, correlations alike."""
    out = []
    for rank in (0, 1):
        for event in [*step(kineto, 3, 1000, 20 * rank), *step(kineto, 4, 2000)]:
            if event["cat"] == "kernel":
                args = {**event["args"], "device": rank}
                out.append({**event, "pid": rank, "args": args})
            else:
                number = 4000 + rank * processes
                out.append({**event, "pid": number, "tid": number})
    return out


def test_several_gpus_of_several_processes_are_several_ranks(kineto):
    found = figures(kineto.write(merged(kineto), None))
    assert found["ranks"] == [0, 1]
    assert (found["gpu_ops"], found["gpu_ops_linked"]) == (8, 8)
    assert (found["collectives"], found["collectives_matched"]) == (2, 2)
    assert [one["step"] for one in found["steps"]] == [3, 4]
    assert found["warnings"] == ["rank0.json holds GPUs 0, 1 of several processes; each is a rank"]
    assert found["stragglers"]["worst"] == 1


def test_several_gpus_of_one_process_are_one_rank(kineto):
    found = figures(kineto.write(merged(kineto, processes=False), None))
    assert found["ranks"] == [0]
    assert "rank0.json holds GPUs 0, 1 of one process; they are one rank" in found["warnings"]


def test_files_that_say_no_rank_are_numbered_by_their_names(kineto):
    names = ["host10_7.1.pt.trace.json", "host2_6.2.pt.trace.json"]
    paths = [
        kineto.write(step(kineto, 3, 1000, late), None, name)
        for name, late in zip(names, (20, 0), strict=True)
    ]
    found = figures(*paths)
    assert found["stragglers"]["worst"] == 1  # host10, behind host2
    assert found["warnings"] == [
        "no file says its rank, so ranks are in the order of their names: host2_6 is 0, "
        "host10_7 is 1"
    ]
    with pytest.raises(InputError, match="does not say its rank, but other files do"):
        read([*paths[:1], kineto.write(step(kineto, 3, 1000), 1)])
    again = kineto.write(step(kineto, 3, 1000), None, "host2_6.9.pt.trace.json")
    with pytest.raises(InputError, match="both of worker host2_6, and do not say their rank"):
        read([paths[1], again])


CASES = [
    ("01", (0, 1), [2.011, 2.011], "1 GPU op with no time left out"),
    ("03", (0, 1), [2.011, 2.011], "1 GPU op cut where the next one of the stream begins"),
    ("04", (0, 1, 3), [2.491, 2.491], "rank 2 was not read, though process groups name it: 8 of 8"),
    ("05", (0, 1), [2.011, 2.011, 2.011], "only step 4 by all"),
    ("08", (0, 1), [2.011, 2.011], "holds GPUs 0, 1 of several processes"),
    ("09", (0, 1), [2.011, 2.011], "host1_4001 is 0, host2_4002 is 1"),
]  # steps in ms


@pytest.mark.parametrize(("number", "ranks", "steps", "said"), CASES)
def test_public_reports(shared: Path, traincast, tmp_path: Path, number, ranks, steps, said):
    (folder,) = (shared.parent / "cases/reports").glob(f"{number}-*")
    code, out, _ = traincast("analyze", folder, "--json", "--out", tmp_path)
    found = json.loads(out)
    assert (code, found["ranks"]) == (0, [*ranks])
    assert [one["seconds"] * 1e3 for one in found["steps"]] == pytest.approx(steps)
    assert any(said in sentence for sentence in found["warnings"])
    assert said in (tmp_path / "report.html").read_text()
    assert {*found["clocks"]["offset_s"].values()} == {0.0}
    unknown = number in ("04", "05")
    assert found["stragglers"]["slowdown"] == (None if unknown else pytest.approx(1.0))


def test_clocks_three_seconds_apart(shared: Path):
    cases = shared.parent / "cases/traces"
    made = read([cases / "6_rank0.json", cases / "6_rank1.json"])
    assert made.clock_offsets[1] == pytest.approx(-3.0)
    assert made.warnings == ()


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_end_in_a_sentence_or_a_count(shared: Path, traincast, name):
    path = shared.parent / "cases/traces_damaged" / name
    command = "replay" if name.endswith("replay") else "analyze"
    code, out, error = traincast(command, path, "--json")
    if code:
        assert (code, out) == (2, "")
        assert error.startswith("error: ")
        assert len(error.splitlines()) == 1
    else:
        assert any("left out" in sentence for sentence in json.loads(out)["warnings"])


def test_a_circle_of_waits_costs_the_figure_of_stragglers_alone(shared: Path):
    """Sends and receives lack partners, so what is left waits in a circle."""
    path = shared.parent / "cases/traces_damaged/trace_137_analyze"
    found = figures(path)
    assert "is unknown: the ops wait for each other in a circle" in found["stragglers"]["unknown"]
    assert found["per_rank"]
    with pytest.raises(InputError, match="deadlock"):
        replays.replay(read([path]))


def test_a_file_of_the_same_event_again_and_again_is_read_once(kineto, monkeypatch):
    """Neither one event over and over nor all events over and over fill the memory."""
    most = []
    monkeypatch.setattr(ranks_file, "MANY", 1000)
    monkeypatch.setattr(ranks_file, "OFTEN", 64)
    once = ranks_file._Copies.many

    def many(copies) -> None:
        most.append(len(copies._trace.gpu))
        once(copies)

    monkeypatch.setattr(ranks_file._Copies, "many", many)
    events = step(kineto, 3, 1000)
    path = kineto.write([*5000 * events[2:3], *2000 * events])
    found = figures(path)
    assert (found["gpu_ops"], found["gpu_ops_linked"]) == (2, 2)
    assert max(most) <= 1000 + 64
    assert "14,995 events left out, as the file already has the same" in found["warnings"][0]


@pytest.mark.parametrize("digits", [3999, 4299, 5000, 70_000, 200_000])
def test_integers_of_any_length_cost_their_event(kineto, digits):
    """One of over 4,300 digits ended the process inside of the parser."""
    events = [*kineto.launched("gemm", 10, 20, 13, 1), *kineto.launched("gemm", 20, 40, 13, 2)]
    events[1]["ts"] = "LONG"
    path = kineto.write(events)
    path.write_text(path.read_text().replace('"LONG"', "9" * digits))
    found = figures(path)
    assert found["gpu_ops"] == 1
    assert "1 event left out, whose fields" in found["warnings"][0]


@pytest.mark.parametrize(
    "us", ["1712195495519689.0475", "-3.0005", "2305843009213692.9994", "1E+3", "0.0004999"]
)
def test_a_time_is_the_nearest_whole_nanosecond(us: str) -> None:
    assert nanoseconds(Decimal(us)) == round(1000 * Fraction(us))


@pytest.mark.parametrize("us", ["2305843009213693", "-1E+16", "1E+999999"])
def test_a_time_that_no_clock_has_is_refused(us: str) -> None:
    with pytest.raises(ValueError, match="time"):
        nanoseconds(Decimal(us))
