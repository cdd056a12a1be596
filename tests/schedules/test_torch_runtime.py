"""Our CSV in torch's own runtime: gloo, a process per rank, tiny stages on the CPU."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

import schedules
from schedules import Plan
from traces import schedule_csv

SCRIPT = Path(__file__).with_name("run_in_torch.py")
RANKS, MICROBATCHES = 4, 8
COMMUNICATING = ("one_f_one_b", "interleaved_1f1b", "dualpipe_v")  # also written with messages

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]


def plans() -> dict[str, Plan]:
    """Every schedule of ours that torch can run: one rank per stage."""
    out = {}
    for name in schedules.names():
        plan = schedules.load(name)(RANKS, MICROBATCHES)
        if name != "dualpipe":  # two copies of each stage
            out[name] = plan
    return out


def test_torch_runs_exactly_the_steps_in_our_files(tmp_path: Path) -> None:
    """Every schedule; and with its gradients: those of plain autograd."""
    files = {}
    for name, plan in plans().items():
        files[name] = plan, schedule_csv.text(plan)
        if name in COMMUNICATING:
            files[f"{name}.comms"] = plan, schedule_csv.text(plan, communication=True)
    for name, (_, text) in files.items():
        (tmp_path / f"{name}.csv").write_bytes(text.encode())
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(RANKS), *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, (plan, _) in files.items():
        for rank, steps in enumerate(schedules.flat(plan)):
            got = json.loads((tmp_path / f"{name}.{rank}.json").read_text())
            assert got["ran"] == [str(step) for step in steps], (name, rank)
            assert got["error"] < 1e-6, (name, rank)
