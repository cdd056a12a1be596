"""The machine in a timeline's file: all that decides times comes back as it was."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np

from sim.engine import simulate
from sim.graph import Builder, Communication, Compute
from sim.machine.hardware import CommunicationCost, Limits, Machine, table
from sim.timeline import Timeline
from traces.own import perfetto
from traces.own.priced_machine import PricedMachine, repeats
from traces.own.read import read_priced

ELSEWHERE = {"clocks", "slowest", "apart"}
"""Clocks follow from the limits; what the slowest GPU adds is in the columns; no run asks how
latencies differ."""


def ran() -> tuple[Timeline, Machine]:
    """Products on two ranks beside an all-reduce that takes SMs, bandwidth and power."""
    b = Builder()
    product, meet = Compute("gemm", 8.0, 4.0, (1, 2, 3, 4)), Communication("x", 8.0, (0, 1), "dp")
    for rank in range(2):
        b.add("gemm", rank, "compute", product)
        b.add("all_reduce", rank, "dp", meet)
    b.join([1, 3])
    graph = b.graph()
    cost = CommunicationCost(0.5, 8.0, (0,), (1.0,), sms=20, hbm=0.4)
    capacity = np.array([2.0])
    machine = table(graph.works, lambda _: (3.0, 1.0, 0.25), lambda _: cost, capacity, 100, 0.7)
    machine = replace(
        machine,
        factor=np.array([1.0, 1.0, 1.5, 1.0]),
        limits=Limits(0.6, 2.0, 2.4, 0.5),
        tensor=machine.arithmetic * 1.0,
        traffic=machine.memory * 0.5,
    )
    return simulate(graph, machine), machine


def test_a_file_names_all_that_decides_times(tmp_path: Path) -> None:
    timeline, machine = ran()
    path = tmp_path / "timeline.json.gz"
    perfetto.write(timeline, path, of=PricedMachine(machine, machine.capacity))
    again, found = read_priced(path)
    assert found is not None
    for of in fields(Machine):
        was, now = (getattr(one, of.name) for one in (machine, found.machine))
        if of.name not in ELSEWHERE:
            assert was is not of.default, f"the test leaves {of.name} at its default"
            np.testing.assert_array_equal(was, now, err_msg=of.name)
    assert repeats(again, found)
    for change in ({"contention": 0.0}, {"limits": None}, {"factor": None}):
        assert not repeats(again, PricedMachine(replace(found.machine, **change), found.healthy))
