"""HolisticTraceAnalysis reads the per-rank files and finds our shares of time."""

from __future__ import annotations

import gzip
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sim import run as simulate
from sim.analysis.breakdown import breakdown
from sim.graph import Builder, Communication, Compute, Copy
from sim.timeline import Timeline
from traces.hta.files import write_rank_files

HTA = """
import json, sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_dir=sys.argv[1])
time = analysis.get_temporal_breakdown(visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
print("RESULT" + json.dumps([time.to_dict("list"), overlap.to_dict("list")], default=float))
"""


def four_ranks() -> Timeline:
    """Back-to-back kernels of 3 to 90 us with fractions, collectives beside and between them,
    copies, and gaps; every rank a little slower than the one before."""
    rng, b = np.random.default_rng(3), Builder()
    start, end = [], []
    for rank in range(4):
        now = 0.0
        for k in range(300):
            seconds = float(rng.uniform(3e-6, 90e-6)) * (1 + rank / 10)
            work = Compute("gemm", 1.0, 1.0)
            b.add("gemm", rank, "compute", work, phase="F")
            start.append(now)
            end.append(now + seconds)
            name, of = [("all_reduce", "tp"), ("p2p", "pp"), ("", "")][k % 3]
            if name:
                group = (0, 1, 2, 3) if of == "tp" else (rank, rank ^ 1)
                b.add(name, rank, of, Communication(name, 1e6, group, of))
                start.append(now + seconds / 2)
                end.append(now + seconds * (1.4 if of == "tp" else 0.9))
            if k % 10 == 0:
                b.add("offload", rank, "d2h", Copy(1e6, "d2h"))
                start.append(now + seconds)
                end.append(now + seconds * 1.2)
            now += seconds * (1.7 if k % 4 == 0 else 1.0)
    return Timeline(b.graph(), np.array(start), np.array(end))


def simulated() -> Timeline:
    """A whole step of 4 layers on 4 unfolded ranks, tensor and pipeline parallel."""
    recipe = Path(__file__).parents[2] / "validation/recipes/korthikanti_22b_full.toml"
    small = {"model.layers": 4, "cluster.gpus": 4, "parallelism.tp": 2, "parallelism.pp": 2}
    more = {"parallelism.p2p": "direction", "training.global_batch": 32, "simulation.fold": "none"}
    return simulate(recipe, small | more | {"parallelism.sp": True}).timeline


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hta") is None, reason="HolisticTraceAnalysis absent")
@pytest.mark.parametrize("make", [four_ranks, simulated])
def test_hta_finds_our_shares(tmp_path, make):
    timeline = make()
    write_rank_files(timeline, tmp_path)
    run = subprocess.run(
        [sys.executable, "-W", "default", "-c", HTA, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    time, overlap = json.loads(run.stdout.rsplit("RESULT", 1)[1])
    ours = breakdown(timeline)
    order = np.argsort(time["rank"])
    assert sorted(time["rank"]) == [0, 1, 2, 3]
    inside = ours.empty - (ours.step - ours.span)  # HTA looks at a rank's own span
    transfers = sum(ours.exposed.values())
    expected = {"idle": inside, "compute": ours.compute, "non_compute": transfers}
    for name, seconds in expected.items():
        theirs = np.array(time[f"{name}_time_pctg"])[order]
        assert theirs == pytest.approx(100 * seconds / ours.span, abs=0.5)
    share = 100 * ours_overlap(timeline)
    assert np.array(overlap["comp_comm_overlap_pctg"])[order] == pytest.approx(share, abs=0.5)


def ours_overlap(timeline: Timeline) -> np.ndarray:
    """The share of communication beside computing; copies are no communication to HTA."""
    table = timeline.to_pandas()
    shares = []
    for _, rows in table.groupby("rank"):
        grid = np.arange(0, timeline.seconds, timeline.seconds / 5e5)
        beside = {True: np.zeros(len(grid), bool), False: np.zeros(len(grid), bool)}
        for of, a, b in zip(rows["stream"], rows["start"], rows["end"], strict=True):
            if of != "d2h":
                beside[of == "compute"][np.searchsorted(grid, a) : np.searchsorted(grid, b)] = True
        shares.append((beside[True] & beside[False]).sum() / beside[False].sum())
    return np.array(shares)


def test_files_look_like_the_profilers(tmp_path):
    write_rank_files(four_ranks(), tmp_path, ranks=[0, 2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0.json.gz", "rank2.json.gz"]
    trace = json.loads(gzip.decompress((tmp_path / "rank2.json.gz").read_bytes()))
    assert trace["distributedInfo"] == {"backend": "nccl", "rank": 2, "world_size": 4}
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = {event["name"] for event in events if event["cat"] == "kernel"}
    assert names == {"gemm", "ncclDevKernel_AllReduce", "ncclDevKernel_SendRecv"}
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] == "cuda_runtime"}
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy"):
            assert launches[event["args"]["correlation"]]["ts"] <= event["ts"]
            assert event["args"]["stream"] > 0
    send = next(event for event in events if event["name"] == "ncclDevKernel_SendRecv")
    assert send["args"]["Process Group Ranks"] == "[2, 3]"
    assert (send["args"]["Src Rank"], send["args"]["Collective name"]) == (2, "send")
