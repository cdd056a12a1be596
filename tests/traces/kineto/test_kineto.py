"""Files of PyTorch's profiler: every trap of the format in a small file of its own."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.engine import simulate
from sim.machine.hardware import ideal
from traces.reading import read
from traces.recording import Selection


def us(recording, column: str = "start") -> list[int]:
    """Start or end of every op in whole microseconds, by index."""
    return np.rint(getattr(recording.timeline, column) * 1e6).astype(int).tolist()


def op(recording, name: str) -> int:
    graph = recording.timeline.graph
    return next(i for i in range(len(graph)) if graph.op(i).name == name)


def waits(recording, name: str) -> list[str]:
    graph = recording.timeline.graph
    return sorted(graph.op(int(i)).name for i in graph.waits(op(recording, name)))


def streams(recording) -> list[str]:
    graph = recording.timeline.graph
    return [graph.op(i).stream for i in range(len(graph))]


def test_a_launch_its_kernel_and_what_they_took(kineto):
    """Of numbers that differ: call 10 to 15, kernel 20 to 33, call 40 to 45, kernel 47 to 58."""
    events = kineto.launched("gemm_a", 10, 20, 13, 1) + kineto.launched("gemm_b", 40, 47, 11, 2)
    made = read([kineto.write(events)])
    graph = made.timeline.graph
    assert [graph.op(i).name for i in range(4)] == [
        "cudaLaunchKernel", "gemm_a", "cudaLaunchKernel", "gemm_b",
    ]  # fmt: skip
    assert streams(made) == ["host 100", "stream 7"] * 2
    assert (us(made), us(made, "end")) == ([0, 10, 30, 37], [5, 23, 35, 48])
    assert waits(made, "gemm_a") == waits(made, "gemm_b") == ["cudaLaunchKernel"]
    assert made.counts == {
        "gpu_ops": 2, "gpu_ops_linked": 2, "collectives": 0, "collectives_matched": 0,
    }  # fmt: skip
    assert graph.op(1).work.kind == "gemm"
    again = simulate(graph, ideal(graph))
    assert again.end == pytest.approx(made.timeline.end, abs=1e-12)


def test_launches_outside_the_window(kineto):
    """A kernel without its launch stays where it was, and is counted and told."""
    events = [kineto.kernel("early", 3, 20, 77), *kineto.launched("add", 10, 25, 4, 2)]
    made = read([kineto.write(events)])
    assert (made.counts["gpu_ops"], made.counts["gpu_ops_linked"]) == (2, 1)
    assert waits(made, "early") == []
    assert us(made)[op(made, "early")] == 0
    assert "1 of 2 GPU ops were launched outside the window" in made.warnings[0]


def test_several_host_threads_take_turns(kineto):
    """Autograd's thread launches while the main thread stands still, which then goes on."""
    events = [
        kineto.call("cudaLaunchKernel", 0, 5, 1, tid=100),
        kineto.call("cudaLaunchKernel", 20, 5, 2, tid=200),
        kineto.call("cudaLaunchKernel", 31, 5, 3, tid=200),
        kineto.call("cudaLaunchKernel", 50, 5, 4, tid=100),
        *(kineto.kernel(f"k{n}", 60 + n, 1, n) for n in (1, 2, 3, 4)),
    ]
    made = read([kineto.write(events)])
    graph = made.timeline.graph
    assert streams(made)[:4] == ["host 100", "host 200", "host 200", "host 100"]
    assert [graph.waits(i).tolist() for i in range(4)] == [[], [0], [], [2]]
    lag = graph.wait_lag[graph.wait_start[3]]
    assert lag == pytest.approx(14e-6)  # from 36 to 50


def test_copies_and_memsets_keep_their_place_on_the_stream(kineto):
    events = [
        *kineto.launched("gemm", 0, 10, 7, 1),
        kineto.call("cudaMemsetAsync", 6, 2, 2),
        kineto.event("gpu_memset", "Memset (Device)", 18, 3, 7, device=0, stream=7, correlation=2),
        kineto.call("cudaMemcpyAsync", 9, 2, 3),
        kineto.event("gpu_memcpy", "Memcpy DtoD", 22, 4, 7, device=0, stream=7, correlation=3),
    ]
    made = read([kineto.write(events)])
    graph, on = made.timeline.graph, made.timeline.on(0, "stream 7")
    assert [graph.op(i).name for i in on] == ["gemm", "Memset (Device)", "Memcpy DtoD"]
    assert [graph.op(i).work.kind for i in on] == ["gemm", "copy", "copy"]
    assert made.counts["gpu_ops_linked"] == 3


def test_a_copy_to_pageable_memory_holds_the_host_until_it_is_done(kineto):
    """The call from 0 to 50 returns 4 us after its copy, which took 10 to 46."""
    copy = kineto.event("gpu_memcpy", "Memcpy DtoH", 10, 36, 7, device=0, stream=7, correlation=1)
    made = read([kineto.write([kineto.call("cudaMemcpyAsync", 0, 50, 1), copy])])
    wait = op(made, "cudaMemcpyAsync (wait)")
    assert waits(made, "cudaMemcpyAsync (wait)") == ["Memcpy DtoH"]
    assert (us(made)[wait], us(made, "end")[wait]) == (46, 50)


def test_old_categories_and_texts_for_threads(kineto):
    """As PyTorch 1.8 wrote them; no distributedInfo, the rank is in the name of the file."""
    events = [
        kineto.event("Runtime", "cudaLaunchKernel", 0, 5, "100", correlation=1),
        kineto.event("Kernel", "volta_sgemm", 9, 8, "stream 7", stream=7, correlation=1),
        kineto.event("Runtime", "cudaMemsetAsync", 6, 1, "100", correlation=2),
        kineto.event("Memset", "Memset (Device)", 17, 2, "stream 7", stream=7, correlation=2),
        kineto.event("Operator", "ProfilerStep#4", 0, 30, "100"),
        kineto.event("Runtime", "INVALID", 8, 1, "100", correlation=3),
    ]
    made = read([kineto.write(events, rank=None, name="resnet50.worker3.162314.json")])
    assert made.timeline.graph.ranks().tolist() == [3]
    assert (made.counts["gpu_ops"], made.counts["gpu_ops_linked"]) == (2, 2)
    assert set(streams(made)) == {"host 100", "stream 7"}
    again = read([kineto.folder / "resnet50.worker3.162314.json"], Selection(step=4))
    assert again.counts["gpu_ops"] == 2


def test_rocm_kernels_without_grid_or_operator(kineto):
    """HIP's names, and a communication kernel of which only the metadata says what it is."""
    args = {"Collective name": "allreduce", "Process Group Ranks": "[0]", "kind": "Dispatch Kernel"}
    events = [
        kineto.call("hipExtModuleLaunchKernel", 0, 5, 1),
        kineto.kernel("Cijk_Ailk_Bljk_BBS", 9, 8, 1, 0),
        kineto.call("hipLaunchKernel", 6, 5, 2),
        kineto.kernel("ncclDevKernel_Generic(ncclDevKernelArgs)", 20, 8, 2, 4, **args),
    ]
    made = read([kineto.write(events)])
    graph = made.timeline.graph
    kinds = {graph.op(i).name[:4]: graph.op(i).work.kind for i in range(len(graph))}
    assert (kinds["Cijk"], kinds["nccl"]) == ("gemm", "communication")
    assert "stream 4 communication" in graph.streams


def test_integers_and_fractions_are_exact(kineto):
    """Microseconds since 1970 with three decimals have 19 digits: more than a float holds."""
    text = kineto.write(kineto.launched("gemm", 1, 2, 3, 1)).read_text()
    for now, then in (('"ts": 1,', "1712195495519689.047"), ('"ts": 2,', "1712195495519695.812")):
        text = text.replace(now, f'"ts": {then},')
    path = kineto.folder / "exact.json"
    path.write_text(text)
    start = read([path]).timeline.start
    assert start[1] - start[0] == pytest.approx(6.765e-6, abs=1e-15)


def test_base_time_is_added_and_brings_ranks_together(kineto):
    """Rank 1 began its clock 2 s later, so the same ts is 2 s later."""
    base = 1711964646000000000
    files = [
        kineto.write(kineto.launched("gemm", 10, 20, 5, 1), 0, baseTimeNanoseconds=base),
        kineto.write(
            kineto.launched("gemm", 10, 20, 5, 1), 1, baseTimeNanoseconds=base + 2_000_000_000
        ),
    ]
    start = read(files).timeline.start
    assert start.tolist() == pytest.approx([0, 10e-6, 2, 2 + 10e-6], abs=1e-9)


def test_one_launch_of_many_kernels(kineto):
    """A CUDA graph: all kernels have the correlation of the one call."""
    events = [
        kineto.call("cudaGraphLaunch", 0, 6, 5),
        *(kineto.kernel(f"k{n}", 10 + 7 * n, 6, 5) for n in range(3)),
    ]
    made = read([kineto.write(events)])
    assert made.counts["gpu_ops_linked"] == 3
    assert all(waits(made, f"k{n}") == ["cudaGraphLaunch"] for n in range(3))


def test_kernels_that_overlap_on_one_stream_get_lanes(kineto):
    """As branches of a CUDA graph do; a microsecond of rounding is no overlap."""
    events = [
        kineto.call("cudaGraphLaunch", 0, 6, 5),
        kineto.kernel("a", 10, 20, 5),
        kineto.kernel("b", 15, 20, 5),
        kineto.kernel("c", 34, 3, 5),
    ]
    made = read([kineto.write(events)])
    graph = made.timeline.graph
    lanes = {graph.op(i).name: graph.op(i).stream for i in range(1, 4)}
    assert lanes == {"a": "stream 7", "b": "stream 7 (2)", "c": "stream 7"}


def test_a_truncated_file_is_read_as_far_as_it_goes(kineto):
    text = kineto.write(
        [e for n in range(20) for e in kineto.launched("gemm", n, 40 + n, 1, n + 1)]
    )
    cut = text.read_bytes()
    cut = cut[: int(len(cut) * 0.6)]
    path = kineto.folder / "cut.json"
    path.write_bytes(cut)
    made = read([path])
    assert 0 < made.counts["gpu_ops"] < 20
    assert made.counts["gpu_ops"] == cut.count(b'"kernel"') - (not cut.rstrip().endswith(b"}"))
    assert "cut off" in made.warnings[0]
    packed = kineto.folder / "cut.json.gz"
    packed.write_bytes(gzip.compress(text.read_bytes())[:-20])
    assert "cut off" in read([packed]).warnings[0]


def test_a_name_that_holds_a_quote_costs_only_its_event(kineto):
    events = [*kineto.launched("one", 0, 10, 5, 1), kineto.event("cpu_op", "BAD", 1, 1)]
    events += kineto.launched("two", 20, 30, 5, 2)
    path = kineto.write(events, 5)
    path.write_text(path.read_text().replace('"BAD"', '"lookup "table" of {"ph": 1"'))
    made = read([path])
    assert made.counts["gpu_ops_linked"] == 2
    assert made.timeline.graph.ranks().tolist() == [5]
    assert "1 event is not JSON" in made.warnings[0]


def test_synchronising_calls_wait_for_what_was_launched(kineto):
    """The call lasts 12 to 70; its kernel ends at 66. The other stream does not matter."""
    events = [
        *kineto.launched("mine", 0, 10, 56, 1),
        kineto.call("cudaStreamSynchronize", 12, 58, 9),
        kineto.call("cudaLaunchKernel", 1, 3, 2, tid=200),
        kineto.kernel("other", 10, 30, 2, 20),
    ]
    made = read([kineto.write(events)])
    sync = op(made, "cudaStreamSynchronize")
    assert waits(made, "cudaStreamSynchronize") == ["mine"]
    assert (us(made)[sync], us(made, "end")[sync]) == (66, 70)


def test_waits_that_cuda_sync_tells(kineto):
    """Of two ops on the other stream the wait is for the one before the record."""
    sync = {"stream": 20, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 3}
    events = [
        *kineto.launched("first", 0, 10, 5, 1),
        kineto.call("cudaEventRecord", 6, 1, 3),
        *kineto.launched("second", 8, 15, 5, 2),
        kineto.call("cudaStreamWaitEvent", 14, 1, 4),
        *kineto.launched("later", 16, 40, 5, 5, stream=20),
        kineto.event("cuda_sync", "Stream Wait Event", 14, 1, 20, correlation=4, **sync),
    ]
    made = read([kineto.write(events)])
    assert waits(made, "later") == ["cudaLaunchKernel", "first"]


@pytest.mark.parametrize("numbered", [True, False])
def test_waits_around_a_collective_are_inferred(kineto, numbered):
    """The kernel waits for what was computed, work.wait() for the kernel; NCCL's own pair not."""
    number = {"Seq": 7} if numbered else {}
    events = [
        *kineto.launched("gemm", 0, 10, 30, 1),
        kineto.posted("allreduce", 6, 20, **number),
        kineto.call("cudaEventRecord", 7, 1),
        kineto.call("cudaStreamWaitEvent", 8, 1),
        *kineto.launched("ncclDevKernel_AllReduce_Sum_f16", 10, 42, 20, 2, stream=24),
        kineto.call("cudaEventRecord", 16, 1),
        kineto.call("cudaStreamWaitEvent", 17, 1),
        *kineto.launched("beside", 24, 44, 6, 3),
        *kineto.launched("aside", 30, 45, 2, 5, stream=20),
        kineto.posted("wait", 40, 4, **number),
        kineto.call("cudaStreamWaitEvent", 41, 1),
        *kineto.launched("after", 46, 64, 5, 4),
    ]
    made = read([kineto.write(events)])
    assert waits(made, "ncclDevKernel_AllReduce_Sum_f16") == ["cudaLaunchKernel", "gemm"]
    assert waits(made, "beside") == waits(made, "aside") == ["cudaLaunchKernel"]
    assert waits(made, "after") == ["cudaLaunchKernel", "ncclDevKernel_AllReduce_Sum_f16"]


def test_a_wait_is_for_the_collective_of_its_number(kineto):
    """Two are on their way, and the second is waited for first."""
    events = []
    for n in (1, 2):
        events.append(kineto.posted("allreduce", 10 * n, 9, Seq=n))
        events += kineto.launched(f"ncclKernel_{n}", 10 * n + 2, 20 * n, 10, n, stream=24)
    for n, at in ((2, 60), (1, 80)):
        events.append(kineto.posted("wait", at, 4, Seq=n))
        events.append(kineto.call("cudaStreamWaitEvent", at + 1, 1))
        events += kineto.launched(f"after_{n}", at + 5, at + 12, 3, 10 + n)
    made = read([kineto.write(events)])
    for n in (1, 2):
        assert waits(made, f"after_{n}") == ["cudaLaunchKernel", f"ncclKernel_{n}"]


def test_annotations_name_stage_microbatch_and_step(kineto):
    """By the instant of the launch: the kernel itself may run after the annotation has ended."""
    events = [
        kineto.event("user_annotation", "ProfilerStep#6", 0, 50),
        kineto.event("user_annotation", "ProfilerStep#7", 50, 60),
        kineto.event("user_annotation", "PP:2F0", 5, 20),
        kineto.event("user_annotation", "PP:1B3", 55, 20),
        *kineto.launched("forward", 10, 30, 5, 1),
        *kineto.launched("backward", 60, 80, 5, 2),
        *kineto.launched("between", 90, 95, 5, 3),
    ]
    path = kineto.write(events)
    made = read([path])
    graph = made.timeline.graph
    first, second, third = (graph.op(op(made, n)) for n in ("forward", "backward", "between"))
    assert (first.phase, first.stage, first.microbatch) == ("F", 2, 0)
    assert (second.phase, second.stage, second.microbatch) == ("B", 1, 3)
    assert (third.phase, third.stage, third.microbatch) == ("", -1, -1)
    assert graph.step[[op(made, "forward"), op(made, "backward")]].tolist() == [0, 1]
    assert read([path], Selection(step=7)).counts["gpu_ops"] == 2
    assert read([path], Selection(window=(0.0, 30e-6))).counts["gpu_ops"] == 1
    with pytest.raises(ValueError, match="rank 0 has no step 9; its steps are 6, 7"):
        read([path], Selection(step=9))


def test_refusals_are_sentences(kineto, tmp_path: Path):
    first = kineto.write(kineto.launched("gemm", 0, 10, 5, 1))
    with pytest.raises(ValueError, match="there is no file of rank 4; there are 0"):
        read([first], Selection(ranks=[4]))
    twice = kineto.write(kineto.launched("gemm", 0, 10, 5, 1), 0, name="again.json")
    with pytest.raises(ValueError, match="both of rank 0"):
        read([first, twice])
    other = tmp_path / "other.json"
    other.write_text('{"nodes": []}')
    with pytest.raises(ValueError, match="is not a trace that can be read"):
        read([other])


@pytest.mark.parametrize("key", ["ts", "dur"])
@pytest.mark.parametrize("value", ["soon", None, float("nan"), float("inf"), 1e300, 10**18, [1]])
def test_times_that_no_clock_has_are_left_out(kineto, key, value):
    """In nanoseconds they must fit into 64 bits, three of them summed."""
    events = [*kineto.launched("gemm", 10, 20, 13, 1), *kineto.launched("gemm", 20, 40, 13, 2)]
    events[1][key] = value
    made = read([kineto.write(events)])
    assert made.counts["gpu_ops"] == 1
    (said,) = made.warnings
    assert "rank0.json: 1 event left out" in said
    assert f"in event 1, {key} is " in said
    assert "where a number of microseconds below 2.3e+15 would do" in said
    with pytest.raises(InputError, match=f"no event that can be read: in event 0, {key} is"):
        read([kineto.write(events[1:2])])


FIELDS = [
    ("name", [1], "a list, where a text"), ("tid", {}, "a table, where a whole number"),
    ("args", [1], "a list, where a table"), ("stream", True, "True, where a whole number"),
    ("correlation", "9" * 5000, "9" * 40), ("device", 1.5, "1.5, where a whole"),
    ("stream", float("nan"), "nan"), ("Collective name", [1], "a list, where a text"),
    ("Process Group Ranks", [0, None], "a list, where a list of ranks"),
    ("Process Group Ranks", 7, "7, where a list of ranks"), ("Group size", [], "a list, where"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "said"), FIELDS)
def test_a_field_of_another_type_costs_its_event(kineto, key, value, said):
    events = [*kineto.launched("gemm", 10, 20, 13, 1), *kineto.launched("gemm", 20, 40, 13, 2)]
    events[1]["args"]["Collective name"] = "allreduce"
    of = events[1] if key in ("name", "tid", "args") else events[1]["args"]
    of[key] = value
    if key == "tid":
        del events[1]["args"]["stream"]
    path = kineto.write(events)
    if key == "correlation":  # a number of so many digits, which Python does not write
        path.write_text(path.read_text().replace(f'"{value}"', value))
    made = read([path])
    assert made.counts["gpu_ops"] == 1
    assert any(f"in event 1, {key} is {said}" in sentence for sentence in made.warnings)


def test_a_window_without_ops_is_refused(kineto):
    path = kineto.write(kineto.launched("gemm", 10, 20, 13, 1))
    with pytest.raises(ValueError, match="no op lies in the window"):
        read([path], Selection(window=(5.0, 6.0)))
