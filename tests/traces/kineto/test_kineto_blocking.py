"""Calls that wait for the GPU: for what, and until when, in files that tell neither."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from traces.kineto import awaited, launch_queue
from traces.reading import read
from traces.replay.host_path import host_path
from traces.replay.replays import replay


def row(made, name: str) -> tuple[int, int, list[str]]:
    """Begin and end in whole microseconds, and what it waits for, of the op of a name."""
    graph = made.timeline.graph
    op = next(i for i in range(len(graph)) if graph.op(i).name == name)
    times = (round(float(of[op]) * 1e6) for of in (made.timeline.start, made.timeline.end))
    return (*times, sorted(graph.op(int(i)).name for i in graph.waits(op)))


def copied(kineto, name: str, ts: int, dur: int, correlation: int, stream: int = 7):
    more = {"device": 0, "stream": stream, "correlation": correlation}
    return kineto.event("gpu_memcpy", name, ts, dur, stream, **more)


def busy(kineto, call: str, returns: int, prefix: str = "cuda") -> list:
    """Three kernels of 100 us behind each other, launched in 10 us each, and a copy from 332 to 341
    that was called at 40; its call returns at ``returns``."""
    launch = {"cuda": "cudaLaunchKernel", "hip": "hipLaunchKernel"}[prefix]
    rows = []
    for n in range(3):
        rows.append(kineto.call(launch, 10 * n, 5, n + 1))
        rows.append(kineto.kernel(f"gemm_{n}", 20 + 101 * n, 100, n + 1))
    return [*rows, kineto.call(call, 40, returns - 40, 9), copied(kineto, "copy", 332, 9, 9)]


@pytest.mark.parametrize(
    ("prefix", "call"),
    [("cuda", "cudaMemcpyAsync"), ("cuda", "cudaMemcpy"), ("hip", "hipMemcpyWithStream")],
)
def test_a_blocking_copy_waits_for_its_stream(kineto, prefix, call):
    """It is launched in 5 us, as the kernels were, and the rest of the call is a wait."""
    made = read([kineto.write(busy(kineto, call, 350, prefix))])
    assert row(made, call) == (40, 45, [])
    assert row(made, f"{call} (wait)") == (341, 350, ["copy"])
    seconds = host_path(made).seconds
    assert seconds["compute gemm"] == pytest.approx(300e-6)
    assert seconds["launch"] == pytest.approx(20e-6)  # of the first kernel alone
    before = replay(made, "modelled").steps()[1].sum()
    after = replay(made, what_if="compute * 0.5").steps()[1].sum()
    assert (before - after) == pytest.approx(150e-6)


def test_a_copy_that_returns_while_it_copies_waits_for_what_came_before(kineto):
    """As one from pageable memory, once it is staged: the call returns at 336, before 341."""
    made = read([kineto.write(busy(kineto, "cudaMemcpyAsync", 336))])
    assert row(made, "cudaMemcpyAsync") == (40, 45, [])
    assert row(made, "cudaMemcpyAsync (wait)") == (322, 336, ["gemm_2"])


def test_a_copy_on_another_stream_waits_for_the_event_before_it(kineto):
    """Its own stream is idle, but it waits for stream 7."""
    rows = busy(kineto, "cudaMemcpyAsync", 350)[:-1]
    wait = {"stream": 8, "wait_on_stream": 7, "wait_on_cuda_event_record_corr_id": 5}
    rows += [
        kineto.call("cudaEventRecord", 31, 1, 5),
        kineto.call("cudaStreamWaitEvent", 33, 1, 6),
        kineto.event("cuda_sync", "Stream Wait Event", 33, 1, 8, correlation=6, **wait),
        copied(kineto, "copy", 332, 9, 9, 8),
    ]
    made = read([kineto.write(rows)])
    assert row(made, "copy")[2] == ["cudaMemcpyAsync", "gemm_2"]
    assert row(made, "cudaMemcpyAsync")[:2] == (40, 45)


def test_a_copy_on_an_idle_stream_takes_the_host_as_long_as_it_did(kineto):
    """Staging 1,800 us of data is work of the host."""
    rows = [
        *kineto.launched("gemm", 0, 10, 20, 1),
        kineto.call("cudaMemcpyAsync", 40, 1860, 2),
        copied(kineto, "copy", 1850, 40, 2),
    ]
    made = read([kineto.write(rows)])
    assert row(made, "cudaMemcpyAsync")[:2] == (40, 1850)
    assert row(made, "cudaMemcpyAsync (wait)") == (1890, 1900, ["copy"])


def test_a_kernel_that_its_call_waits_for(kineto):
    """CUDA_LAUNCH_BLOCKING: the call returns 3 us after a kernel of 500 us; 4 us is no such."""
    rows = [
        *kineto.launched("first", 0, 10, 4, 1),
        kineto.call("cudaLaunchKernel", 20, 513, 2),
        kineto.kernel("gemm", 30, 500, 2),
        kineto.call("cudaLaunchKernel", 540, 9, 3),
        kineto.kernel("short", 543, 4, 3),
    ]
    made = read([kineto.write(rows)])
    assert row(made, "cudaLaunchKernel (wait)") == (530, 533, ["gemm"])
    graph = made.timeline.graph
    assert sum(graph.op(i).name.endswith("(wait)") for i in range(len(graph))) == 1


def test_a_launch_into_a_full_stream_waits_for_a_place(kineto, monkeypatch):
    """Of three places: the fourth call, from 30 to 118, returns 8 us after the first kernel, and
    the fifth after the second; they took 5 us, as the others did, and the GPU is the limit."""
    monkeypatch.setattr(launch_queue, "FULL", 3)
    times = [(0, 5), (10, 5), (20, 5), (30, 88), (120, 98), (221, 5)]
    rows = [kineto.call("cudaLaunchKernel", at, us, n) for n, (at, us) in enumerate(times, 1)]
    rows += [kineto.kernel(f"gemm_{n}", 10 + 100 * n, 100, n + 1) for n in range(6)]
    made = read([kineto.write(rows)])
    graph = made.timeline.graph
    at = {
        (round(float(made.timeline.start[i]) * 1e6), round(float(made.timeline.end[i]) * 1e6)): i
        for i in range(len(graph))
        if graph.op(i).name.startswith("cuda")
    }
    assert {span: graph.op(i).name for span, i in at.items()} == {
        (0, 5): "cudaLaunchKernel", (10, 15): "cudaLaunchKernel", (20, 25): "cudaLaunchKernel",
        (110, 113): "cudaLaunchKernel (wait)", (113, 118): "cudaLaunchKernel",
        (210, 213): "cudaLaunchKernel (wait)", (213, 218): "cudaLaunchKernel",
        (221, 226): "cudaLaunchKernel",
    }  # fmt: skip
    waited = [
        graph.op(int(k)).name for span in ((110, 113), (210, 213)) for k in graph.waits(at[span])
    ]
    assert waited == ["gemm_0", "gemm_1"]
    before = replay(made, "modelled").steps()[1].sum()
    after = replay(made, what_if="compute * 0.5").steps()[1].sum()
    assert (before, after) == (pytest.approx(600e-6), pytest.approx(300e-6))


@pytest.mark.slow
def test_faster_kernels_shorten_a_step_that_the_gpu_limits(shared: Path):
    """HTA's trace of a V100 that is 96.75 % busy, with 1,022 launches ahead of it."""
    made = read([next(shared.glob("kineto/hta/ns_resolution_trace/*"))])
    before = replay(made, "modelled").steps()[1].mean()
    after = replay(made, what_if="compute * 0.5").steps()[1].mean()
    assert 0.5 < after / before < 0.53


def test_a_stream_that_its_thread_did_not_launch_on_last(kineto):
    """What the thread launched last is over at 30; the call returns when the other stream does."""
    rows = [
        *kineto.launched("long", 0, 10, 900, 1, stream=13),
        *kineto.launched("short", 8, 15, 15, 2),
        kineto.call("hipStreamSynchronize", 20, 897, 3),
    ]
    made = read([kineto.write(rows)])
    assert row(made, "hipStreamSynchronize") == (910, 917, ["long"])
    near = [*rows[:2], *kineto.launched("short", 8, 15, 850, 2), rows[-1]]
    assert row(read([kineto.write(near)]), "hipStreamSynchronize")[2] == ["short"]
    assert awaited.RETURN == 100_000  # 917 - 865 is less


def test_an_event_that_nobody_saw_being_recorded(kineto):
    """The call returns 6 us after the second of three kernels: that is what it waited for."""
    rows = [
        *kineto.launched("one", 0, 10, 200, 1),
        *kineto.launched("two", 6, 211, 200, 2),
        *kineto.launched("three", 12, 412, 200, 3),
        kineto.call("cudaEventSynchronize", 18, 399, 4),
    ]
    assert row(read([kineto.write(rows)]), "cudaEventSynchronize") == (411, 417, ["two"])


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "hipDeviceSynchronize", "cudaFree"])
def test_a_device_that_has_ops_launched_before_the_window(kineto, call):
    rows = [
        kineto.kernel("early", 10, 500, 77, 13),
        *kineto.launched("gemm", 0, 10, 300, 1),
        kineto.call(call, 20, 497, 2),
    ]
    assert row(read([kineto.write(rows)]), call) == (510, 517, ["early", "gemm"])


def test_memory_that_is_freed_while_the_gpu_is_idle_waits_for_nothing(kineto):
    rows = [*kineto.launched("gemm", 0, 10, 20, 1), kineto.call("cudaFree", 40, 900, 2)]
    made = read([kineto.write(rows)])
    assert "cudaFree" not in made.timeline.graph.names


def test_calls_wait_for_ops_of_which_no_launch_is_known(kineto):
    rows = [kineto.kernel(f"k{n}", 10 * n, 9, 0) for n in range(400)]
    rows += [kineto.call("cudaDeviceSynchronize", 10 * n + 1, 10, 0) for n in range(0, 400, 2)]
    graph = read([kineto.write(rows)]).timeline.graph
    waits = np.diff(graph.wait_start)
    assert [graph.names[graph.name[k]] for k in graph.wait_on] == [
        f"k{n}" for n in range(0, 400, 2)
    ]
    assert set(waits.tolist()) == {0, 1}


@pytest.mark.parametrize("name", ["1_blocking_copy", "2_control_stream_sync"])
def test_the_cases(shared: Path, name: str):
    """40 kernels of 2.499 ms and what the host waits for: the path is the kernels."""
    made = read([shared.parent / f"cases/traces/{name}.json"])
    seconds = host_path(made).seconds
    assert seconds["compute gemm"] == pytest.approx(40 * 2.499e-3)
    assert seconds["launch"] < 30e-6
    before = replay(made, "modelled").steps()[1].sum()
    after = replay(made, what_if="compute * 0.5").steps()[1].sum()
    assert after / before == pytest.approx(0.5, abs=0.001)
