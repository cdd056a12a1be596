"""The recorder: its files, what it refuses, and a real run where torch is installed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import schedules
from sim.builder.activations import layer_bytes
from traces import cpu_steps, reading
from traces.calibration import recorded
from traces.record import (
    everything,
    pace,
    parallel,
    parallel_sizes,
    pipeline_file,
    pipelines,
    streams_pipeline,
    workers,
)

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
F, I, W = 0.005, 0.004, 0.003  # noqa: E741
NS = 1_000_000_000
PATIENCE = 600.0  # seconds in which anything ends, however busy the machine is
PLAN = schedules.load("one_f_one_b")(2, 1)


def compute(name: str, begin: float, end: float) -> dict[str, Any]:
    stage, kind, m = int(name[0]), name[1], int(name[2:])
    args = {"kind": kind, "stage": stage, "mb": m}
    return {"cat": "compute", "name": name, "begin": round(begin * NS), "end": round(end * NS),
            "args": args}  # fmt: skip


def call(cat: str, begin: float, end: float, *ops: tuple[str, int]) -> dict[str, Any]:
    calls = {"ops": [[*op, 64] for op in ops]} if ops else {"n": 1}
    return {"cat": cat, "name": "+".join(op[0] for op in ops) or "wait",
            "begin": round(begin * NS), "end": round(end * NS), "args": calls}  # fmt: skip


def run(at: float = 1.0) -> list[dict[str, Any]]:
    """One microbatch on two ranks, of F = 5 ms and B = 7 ms; messages take 1 ms."""
    first = [
        compute("0F0", at, at + 0.005),
        call("comm_post", at + 0.005, at + 0.0051, ("isend", 1)),
        call("comm_post", at + 0.0052, at + 0.0053, ("irecv", 1)),
        call("comm_wait", at + 0.0053, at + 0.019),
        compute("0B0", at + 0.019, at + 0.026),
    ]
    second = [
        call("comm_post", at, at + 0.0001, ("irecv", 0)),
        call("comm_wait", at + 0.0001, at + 0.006),
        compute("1F0", at + 0.006, at + 0.011),
        compute("1B0", at + 0.011, at + 0.018),
        call("comm_post", at + 0.018, at + 0.0181, ("isend", 0)),
    ]
    bounds = [(at - 0.002, at + 0.027), (at - 0.001, at + 0.019)]
    return [
        {"steps": [{"begin": round(a * NS), "end": round(b * NS), "events": events}],
         "order": [], "trace": None, "device": "cpu"}
        for (a, b), events in zip(bounds, (first, second), strict=True)
    ]  # fmt: skip


def task() -> dict[str, Any]:
    ask = pipelines.PipelineOptions({"F": F, "I": I, "W": W}, steps=1)
    return pipelines.tasks({"one_f_one_b": PLAN}, ask)[0]


def content(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    facts = {"command": "c", "machine": {"torch": "2"}}
    return pipeline_file.content(task(), ranks, PLAN, facts)


def test_a_step_lasts_from_the_last_to_leave_the_barrier_to_the_last_to_be_done() -> None:
    found = content(run())["otherData"]
    assert found["step_ms_all"] == pytest.approx([28.0])
    assert found["noise"] == pytest.approx({"over_ms_p50": 0.0, "over_ms_p99": 0.0}, abs=1e-4)
    assert found["steps_as_planned"] == 1
    assert found["cfg"]["T"] == {"F": F, "I": I, "W": W}


def test_its_file_is_read_as_the_recorded_runs_are(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content(run())))
    timeline = reading.read([path]).timeline
    assert timeline.seconds == pytest.approx(0.026)
    names = [timeline.graph.op(i).name for i in timeline.on(0, "compute")]
    assert names == ["0F0", "0B0"]
    message = timeline.on(1, "pp recv ←0")[0]
    assert timeline.end[message] - timeline.start[message] == pytest.approx(0.006)


def test_another_order_than_the_plans_is_refused() -> None:
    ranks = run()
    ranks[1]["steps"][0]["events"][3]["name"] = "1B1"
    with pytest.raises(ValueError, match="step 0, rank 1: torch ran 1B1 where the plan has 1B0"):
        content(ranks)
    ranks = run()
    del ranks[0]["steps"][0]["events"][-1]
    with pytest.raises(ValueError, match="step 0, rank 0: torch ran nothing where the plan has 0B"):
        content(ranks)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"message": 100}, "a message is a multiple of 256 bytes, not 100"),
        ({"runtime": "own"}, "--runtime is csv or class, not 'own'"),
    ],
)
def test_what_cannot_be_recorded_is_refused(change: dict[str, Any], sentence: str) -> None:
    ask = pipelines.PipelineOptions({"F": F, "I": I, "W": W})._replace(**change)
    with pytest.raises(ValueError, match=sentence):
        pipelines.tasks({"one_f_one_b": PLAN}, ask)


def test_only_schedules_that_torch_has_run_as_its_class() -> None:
    with pytest.raises(ValueError, match="torch has no class for v_half; leave out"):
        pipelines.tasks(
            {"v_half": schedules.load("v_half")(2, 4)}, pipelines.PipelineOptions(runtime="class")
        )


def test_a_sleeper_wakes_when_it_asked_to() -> None:
    begin = time.monotonic_ns()
    pace.sleep_until(begin + 3_000_000)
    assert time.monotonic_ns() >= begin + 3_000_000
    pace.sleep_until(begin)  # has passed


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal is Linux's")
def test_no_worker_outlives_its_parent() -> None:
    child = (
        "import os, time; from traces.record import pace; pace.die_with({})\n"
        "print(os.getpid(), flush=True)\n"  # it has asked the kernel
        "time.sleep(600)"
    )
    parent = (
        "import os, subprocess, sys, time\n"
        f"code = {child!r}.format(os.getpid())\n"
        "subprocess.Popen([sys.executable, '-c', code])\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, cwd=workers.ROOT, text=True
    ) as of:
        assert of.stdout
        pid = int(of.stdout.readline())
        assert alive(pid)
        of.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody awaited does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("name", [name for name in schedules.names() if name != "dualpipe"])
def test_steps_are_issued_to_streams_behind_what_they_need(name: str) -> None:
    plan = schedules.load(name)(4, 8)
    stages = len(schedules.stage_rank(plan))
    order = streams_pipeline.issued(plan)
    for rank, steps in enumerate(schedules.flat(plan)):
        assert [step for at, step in order if at == rank] == steps
    done = set()
    for _, step in order:
        assert streams_pipeline.needed(step, stages) in {None, *done}
        done.add((step.stage, "F" if step.kind == "F" else "B", step.microbatch))


def test_a_section_that_fails_leaves_the_others_and_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: float) -> None:
        raise RuntimeError("no such kernel")

    some = [
        everything.RecordingPart("a", 0.5, broken),
        everything.RecordingPart("b", 0.5, lambda s: {"rows": [s > 20]}),
        everything.RecordingPart("c", 0.5, lambda _: {"skipped": "no GPU", "rows": []}),
        everything.RecordingPart("d", 0.002, lambda _: {}),
    ]
    monkeypatch.setattr(everything, "sections", lambda *_: some)
    monkeypatch.setattr(everything.machine, "require_torch", lambda: None)
    path = everything.record(tmp_path / "out", PATIENCE, "traincast record all", gpus=0)
    result = json.loads(path.read_text())
    assert result["sections"] == {"b": {"rows": [True]}, "c": {"rows": []}}
    why = {one["section"]: one["why"] for one in result["skipped"]}
    assert why["a"] == "RuntimeError: no such kernel"
    assert why["c"] == "no GPU"
    assert why["d"].startswith("InputError: 1 s of the budget are left")
    assert [*path.parent.iterdir()] == [path]


def test_what_is_told_to_end_leaves_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM while a worker runs: it is gone, and the file says what was done and what not."""
    pids: list[int] = []
    awaited = workers._await

    def told(*args: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        awaited(*args)

    def started(_: float) -> Any:
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        monkeypatch.setattr(workers, "_start", lambda *_: child)
        pids.append(child.pid)
        monkeypatch.setattr(workers, "_await", told)
        return workers.run([{"task": "none"}], 1, PATIENCE)

    some = [
        everything.RecordingPart("a", 0.5, lambda _: {"rows": [1]}),
        everything.RecordingPart("b", 0.5, started),
        everything.RecordingPart("c", 0.5, lambda _: {"rows": [2]}),
    ]
    monkeypatch.setattr(everything, "sections", lambda *_: some)
    monkeypatch.setattr(everything.machine, "require_torch", lambda: None)
    was = signal.getsignal(signal.SIGTERM)
    with pytest.raises(everything.Ended, match="SIGTERM"):
        everything.record(tmp_path, PATIENCE, "traincast record all", gpus=0)
    assert signal.getsignal(signal.SIGTERM) is was
    assert not alive(pids[0])
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["sections"] == {"a": {"rows": [1]}}
    assert [(one["section"], one["why"]) for one in result["skipped"]] == [
        ("b", "told to end (SIGTERM)"), ("c", "told to end (SIGTERM)"),
    ]  # fmt: skip


def test_all_shows_what_it_made_and_what_is_missing(
    traincast: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = [
        everything.RecordingPart("a", 0.5, lambda _: {"runs": [{"file": "x.json.gz"}]}),
        everything.RecordingPart(
            "b", 0.5, lambda _: {"rows": [], "skipped": {"green": "not here"}}
        ),
    ]
    monkeypatch.setattr(everything, "sections", lambda *_: some)
    monkeypatch.setattr(everything.machine, "require_torch", lambda: None)
    monkeypatch.setattr(everything.machine, "gpus", lambda _: {"gpus": []})
    code, out, said = traincast("record", "all", "--out", tmp_path, "--json")
    assert (code, said) == (0, "")
    assert json.loads(out) == json.loads((tmp_path / "result.json").read_text())
    code, out, said = traincast("record", "all", "--out", tmp_path)
    assert (code, said) == (0, "")
    assert "without b: green: not here." in out
    assert "x.json.gz" in out


def ended(_: float) -> Any:
    raise everything.Ended("SIGTERM")


def test_all_that_is_told_to_end_says_so(
    traincast: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        everything, "sections", lambda *_: [everything.RecordingPart("a", 0.5, ended)]
    )
    monkeypatch.setattr(everything.machine, "require_torch", lambda: None)
    monkeypatch.setattr(everything.machine, "gpus", lambda _: {"gpus": []})
    code, out, said = traincast("record", "all", "--out", tmp_path)
    assert (code, out) == (143, "")
    assert said == f"error: told to end by SIGTERM; {tmp_path}/result.json has what was done\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("sweep", "p2p"), "p2p is measured between ranks; give --ranks 2, or more"),
        (("sweep", "gem"), "record sweep knows p2p, all_reduce, launch, "),
        (("streams", "one_f_one_b", "--virtual", "F=1/2,I=1,W=1"), "one number each"),
        (("streams", "no_such"), "no_such"),
    ],
)
def test_what_cannot_be_measured_is_one_sentence(
    traincast: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    arguments: tuple[str, ...],
    sentence: str,
) -> None:
    code, out, said = traincast("record", *arguments, "--out", tmp_path / "out.json")
    assert (code, out) == (2, "")
    assert sentence in said
    assert said.count("\n") == 1
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
@needs_torch
def test_a_block_keeps_what_its_operators_say(
    traincast: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """On the CPU norms also keep the normalised input, and both norms a number per token."""
    out = tmp_path / "sweep.json"
    code, said, _ = traincast(
        "record", "sweep", "block", "--seconds", 0.1, "--out", out, "--json"
    )  # fmt: skip
    assert code == 0
    result = json.loads(said)
    assert result == json.loads(out.read_text())
    (row,) = result["block"]
    job = recorded.block(row)
    tokens = row["sequence"]
    eager = 2 * tokens * row["hidden"] * 4 + 2 * tokens * 4
    assert row["kept_bytes"] == layer_bytes(job) + eager


def test_what_no_parallel_training_is_refused() -> None:
    with pytest.raises(ValueError, match=r"record parallel knows ddp, .*, not 'pp'"):
        parallel.record(["pp"], Path("nowhere"), "")
    for text, sentence in {
        "width=3": "--sizes takes blocks, d, .*, not 'width'",
        "d=0": "--sizes: d is a whole number from 1 on, not '0'",
    }.items():
        with pytest.raises(ValueError, match=sentence):
            parallel_sizes.parsed(text)
    for mode, sizes, optimizer, sentence in (
        ("ddp", {"d": 10}, "sgd", "d=10 is no multiple of heads=4; change one"),
        ("tp", {"heads": 1}, "sgd", "heads=1 cannot be split over 2 ranks; change one"),
        ("ddp", {}, "lion", "--optimizer is sgd or adamw, not 'lion'"),
    ):
        with pytest.raises(ValueError, match=sentence):
            parallel_sizes.task_of(mode, sizes, optimizer, 2)
    found = parallel_sizes.task_of("ddp", parallel_sizes.parsed("d=64, mb=3"), "AdamW", 2)
    said = {"d": 64, "ffn": 256, "mb": 3, "optimizer": "AdamW", "bucket_bytes": 4 << 20}
    assert said.items() <= found.items()


@pytest.mark.slow
@needs_torch
def test_two_ranks_record_a_small_training(
    traincast: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Megatron's tensor parallelism of 2 blocks: 4 all-reduces each, half of every wide weight."""
    code, out, said = traincast(
        "record", "parallel", "tp", "--sizes", "blocks=2,d=16,heads=2,seq=8,mb=3", "--steps", 2,
        "--profiled", 3, "--seed", 5, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert (code, said) == (0, "")
    (found,) = json.loads(out)
    path = Path(found["file"])
    assert [*tmp_path.iterdir()] == [path]
    assert path.stat().st_size < 200e3
    run = cpu_steps.read(path)
    assert (run.mode, run.world, len(run.step_s), len(run.profiled_s)) == ("tp", 2, 2, 3)
    assert found["median_ms"] / 1e3 == pytest.approx(sum(run.step_s) / 2, abs=1e-6)
    sizes = {"blocks": 2, "d": 16, "heads": 2, "ffn": 64, "seq": 8, "mb": 3, "optimizer": "SGD"}
    assert sizes.items() <= run.config.items()
    assert run.facts["seed"] == 5
    assert run.facts["command"].startswith("traincast record parallel tp")
    assert [(m.collective, m.bytes) for m in run.moved] == [("all_reduce", 4.0 * 3 * 8 * 16)] * 24
    for one in run.ranks:
        assert one.math_s + one.host_s + one.wait_s == pytest.approx(one.seconds, abs=1e-9)
        assert min(one[3:]) >= 0
    forward = {leaf[1][-1]: leaf.count for leaf in run.leaves
               if leaf.name == "aten::addmm" and leaf.inside == "forward"}  # fmt: skip
    assert forward == {(16, 24): 2, (8, 16): 2, (16, 32): 2, (32, 16): 2}


@pytest.mark.slow
@needs_torch
def test_two_ranks_record_what_was_planned(
    traincast: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Orders of a plain and of an overlapped schedule, and times no shorter than was asked for."""
    code, out, said = traincast(
        "record", "pipeline", "one_f_one_b", "dualpipe_v", "--ranks", 2, "--microbatches", 4,
        "--virtual", "F=5,I=4,W=3", "--steps", 2, "--warm", 1, "--out", tmp_path, "--json",
    )  # fmt: skip
    assert (code, said) == (0, "")
    found = json.loads(out)
    assert [one["steps_as_planned"] for one in found] == [2, 2]
    for one in found:
        recording = reading.read([Path(one["file"])])
        frame = recording.timeline.to_pandas()
        plan = schedules.flat(schedules.load(one["schedule"])(2, 4))
        for rank, steps in enumerate(plan):
            mine = frame[(frame["rank"] == rank) & (frame["stream"] == "compute")]
            assert list(mine["name"]) == [str(step) for step in steps] * 2
        computes = frame[frame["stream"] == "compute"]
        took = (computes["end"] - computes["start"]).groupby(computes["phase"], observed=True).min()
        for kind, least in {"F": F, "B": I + W, "I": I, "W": W}.items():
            assert least - 1e-9 <= took.get(kind, least) < least + 1.0
        busiest = sum({"F": F, "B": I + W, "I": I, "W": W}[step.kind] for step in plan[0])
        assert one["min_ms"] / 1e3 > busiest
        facts = json.loads(subprocess.check_output(["gzip", "-dc", one["file"]]))["otherData"]
        assert facts["command"].startswith("traincast record pipeline one_f_one_b")
        assert {"processor", "cores", "load", "python", "torch"} <= facts["machine"].keys()
        assert os.sep + "tmp" not in json.dumps(facts["machine"])


@pytest.mark.slow
@needs_torch
def test_a_worker_that_fails_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"rank 0 failed while recording: .*no_such_task"):
        workers.run([{"task": "no_such_task"}], 1, PATIENCE, device="cpu")
