"""The critical path of a recording: worked by hand, and as HolisticTraceAnalysis finds it."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from traces.reading import read
from traces.recording import Selection
from traces.replay.host_path import host_path


def events(kineto, at: int = 0) -> list:
    """Operators 0 to 12 and 20 to 27 launch kernels 10 to 30 and 31 to 50; a wait for them is over
    at 54; an operator from 60 to 66."""
    return [
        kineto.event("user_annotation", "iteration", at, 70),
        kineto.event("cpu_op", "aten::mm", at, 12),
        kineto.event("cpu_op", "aten::empty", at + 1, 2),  # inside of aten::mm
        *kineto.launched("gemm", at + 3, at + 10, 20, at + 1),
        kineto.event("cpu_op", "aten::add", at + 20, 7),
        *kineto.launched("add_elementwise", at + 22, at + 31, 19, at + 2),
        kineto.call("cudaStreamSynchronize", at + 40, 14, at + 3),
        kineto.event("cpu_op", "aten::item", at + 60, 6),
    ]


BY_HAND = {
    "compute gemm": 20, "compute elementwise": 19, "host operators": 9, "launch": 7,
    "host other": 6, "sync": 4, "gap": 1,
}  # fmt: skip


def microseconds(seconds) -> dict[str, float]:
    return {name: 1e6 * value for name, value in seconds.items()}


def test_by_hand(kineto):
    """3 us until the launch, 7 to its kernel, 20, a gap of 1, 19, 4 to return, 6 of Python, 6."""
    found = host_path(read([kineto.write(events(kineto))]))
    assert microseconds(found.seconds) == pytest.approx(BY_HAND)
    assert found.span == pytest.approx(66e-6)
    assert found.length == pytest.approx(56e-6)
    assert microseconds(found.grouped()) == pytest.approx(
        {"compute": 39, "host": 15, "launch": 7, "sync": 4, "gap": 1}
    )


def test_an_annotation_selects_what_was_launched_inside_it(kineto):
    path = kineto.write([*events(kineto), *events(kineto, 1000)])
    for instance in (0, 1):
        made = read([path], Selection(annotation="iteration", instance=instance))
        assert made.counts["gpu_ops"] == 2
        assert microseconds(host_path(made).seconds) == pytest.approx(BY_HAND)
    assert host_path(read([path])).span == pytest.approx(1066e-6)


def test_a_gpu_that_works_longer_than_the_host_ends_the_path(kineto):
    rows = [kineto.event("cpu_op", "aten::mm", 0, 12), *kineto.launched("gemm", 3, 10, 90, 1)]
    found = host_path(read([kineto.write(rows)]))
    assert microseconds(found.seconds) == pytest.approx(
        {"compute gemm": 90, "launch": 7, "host operators": 3}
    )


def test_annotations_that_are_not_there(kineto, tmp_path, traincast):
    path = kineto.write(events(kineto))
    with pytest.raises(ValueError, match="has no annotation 'pause'; there are iteration"):
        read([path], Selection(annotation="pause"))
    with pytest.raises(ValueError, match="has 1 annotations 'iteration', counted from 0, but no 3"):
        read([path], Selection(annotation="iteration", instance=3))


# HolisticTraceAnalysis 0.5.0, ``critical_path_analysis``: microseconds of the path's edges by what
# bounds them (its two sorts of gaps together), and the annotation and instance that are analysed.
MEASURE = "[param|pytorch.model.alex_net|0|0|0|measure|forward]"
HTA = {
    "alexnet": (MEASURE, 1, {"host": 32042, "gpu": 3712, "launch": 30, "gap": 50}),
    "simple_add": (MEASURE, 1, {"host": 241190, "gpu": 508, "launch": 17, "gap": 9}),
    "cuda_event_sync": ("ProfilerStep", 0, {"host": 2335, "gpu": 38, "launch": 28}),
}


@pytest.fixture
def data(shared: Path) -> Path:
    return shared / "kineto/hta/critical_path"


@pytest.mark.parametrize("name", list(HTA))
def test_length_and_split_are_those_of_hta(data, name):
    """To a microsecond but for cuda_event_sync, where HTA counts two calls as nothing, 3 and 1 us.

    In alexnet HTA has no edge for a microsecond between two kernels of different streams.
    """
    annotation, instance, theirs = HTA[name]
    found = host_path(read([data / name], Selection(annotation=annotation, instance=instance)))
    apart = 4.01 if name == "cuda_event_sync" else 1.01
    assert 1e6 * found.length == pytest.approx(sum(theirs.values()), abs=apart)
    seconds = microseconds(found.seconds)
    gpu = sum(of for cause, of in seconds.items() if cause.startswith(("compute", "copy")))
    assert seconds["host operators"] == pytest.approx(theirs["host"], abs=apart)
    assert [gpu, seconds["launch"]] == pytest.approx([theirs["gpu"], theirs["launch"]])
    assert seconds.get("gap", 0.0) == pytest.approx(theirs.get("gap", 0.0), abs=1.01)


RUN_HTA = """
import json, sys, logging
logging.disable(logging.CRITICAL)
from hta.trace_analysis import TraceAnalysis
path, _ = TraceAnalysis(trace_dir=sys.argv[1]).critical_path_analysis(0, sys.argv[2], 0)
of = path.get_critical_path_breakdown().groupby("bound_by")["duration"].sum()
keys = ["cpu_bound", "gpu_compute_bound", "gpu_kernel_launch_overhead"]
print("RESULT" + json.dumps([float(of[k]) for k in keys]))
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="HolisticTraceAnalysis absent")
def test_hta_still_says_so(data):
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RUN_HTA, data / "cuda_event_sync", "ProfilerStep"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    theirs = HTA["cuda_event_sync"][2]
    assert json.loads(run.stdout.rsplit("RESULT", 1)[1]) == [*theirs.values()]
