"""A pipeline schedule by itself: fixed seconds per stage, one rank per pipeline rank, no machine.

The graph comes from the same lowering as that of a training step, and runs on the ideal machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import schedules
from schedules import Plan
from sim.analysis.memory import peaks
from sim.engine import simulate
from sim.graph import Communication, Fixed, Graph, Memory
from sim.hardware import ideal
from sim.program import Kernel, Program
from sim.strategies.exchange import Policy, exchange, exchange_phase
from sim.strategies.messages import Messages, Steps, columns, messages, torch_order
from sim.strategies.pipeline import Makers, Variant, lower
from sim.template import Stamp, Tables, Template, assemble, place
from sim.template import exchange as exchange_template
from sim.timeline import Timeline

DIRECTION = Policy("direction")
Times = Mapping[str, float]  # seconds of a stage's F, I and W; of a transfer, p2p


def simulate_schedule(
    name: str, ranks: int, microbatches: int, chunks: int, times: Times
) -> dict[str, Any]:
    """Run a schedule; the keys are those of ``traincast schedule --json`` (see the README).

    Raises ValueError when there is no such schedule or it does not take such numbers.

    >>> times = {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.0}
    >>> simulate_schedule("one_f_one_b", 4, 8, 1, times)["makespan_s"]  # (m + p - 1)(F + I + W)
    132.0
    """
    plan = plan_of(name, ranks, microbatches, chunks)
    return figures(plan, run_plan(plan, times))


def schedule_timeline(
    name: str, ranks: int, microbatches: int, chunks: int, times: Times
) -> Timeline:
    """The timeline behind :func:`simulate_schedule`."""
    return run_plan(plan_of(name, ranks, microbatches, chunks), times)


def plan_of(name: str, ranks: int, microbatches: int, chunks: int) -> Plan:
    """The plan of a schedule, which gets the number of chunks if it takes one."""
    given = {"chunks": chunks} if "chunks" in schedules.options(name) else {}
    schedules.check(name, ranks, microbatches, **given)
    return schedules.load(name)(ranks, microbatches, **given)


def run_plan(plan: Plan, times: Times, policy: Policy = DIRECTION) -> Timeline:
    """Run any plan; a stage's whole backward takes I + W seconds."""
    graph = plan_graph(plan, times, policy)
    return simulate(graph, ideal(graph, times.get("p2p", 0.0)))


def figures(plan: Plan, timeline: Timeline) -> dict[str, Any]:
    """Makespan, and per rank its idle seconds, activations at the peak and order."""
    graph = timeline.graph
    first, last, busy = (np.zeros(len(plan)) for _ in range(3))
    for rank, stream, ops in graph.by_stream():
        if stream == "compute":
            first[rank], last[rank] = timeline.start[ops[0]], timeline.end[ops[-1]]
            busy[rank] = (timeline.end[ops] - timeline.start[ops]).sum()
    return {
        "makespan_s": timeline.seconds,
        "longest_span_s": float((last - first).max()),
        "idle_s": (timeline.seconds - busy).tolist(),
        "idle_in_span_s": (last - first - busy).tolist(),
        "peak_activations": [peak.peak_bytes for peak in peaks(timeline)],
        "orders": [[str(step) for step in steps] for steps in plan],
    }


def plan_graph(plan: Plan, times: Times, policy: Policy) -> Graph:
    """One op per step, one per end of a message; an activation counts as one byte."""
    steps, tables = columns(plan), Tables()
    sent = messages(steps)
    torch = torch_order(steps, sent)
    stamps: list[Stamp] = []
    base = 0
    for rank in range(len(plan)):
        make = _makers(times, steps, sent, tables)
        peers = list(range(len(plan)))
        moves = exchange(policy, steps, sent, torch, rank, peers, lambda _: (0,))
        parts = np.arange(len(sent.source))
        more, base, _ = lower(steps, rank, moves, make, base, 0, parts, lambda _: (), rank)
        stamps += more
    ends = zip(steps.rank[sent.source].tolist(), steps.rank[sent.target].tolist(), strict=True)
    work = np.array([tables.works(_message(a, b)) for a, b in ends], np.int32)
    return assemble(stamps, tables, work, {}, {})


def _message(source: int, target: int) -> Communication:
    return Communication("p2p", 1.0, (source, target), "pp")


def _makers(times: Times, steps: Steps, sent: Messages, tables: Tables) -> Makers:
    made: dict[object, Template] = {}
    empty = place([], lambda _: (), tables)

    def step(variant: Variant) -> Template:
        if variant not in made:
            made[variant] = place(_program(variant, times), lambda _: (), tables)
        return made[variant]

    def move(name: str, stream: str, message: int, waits: int, parts: int) -> Template:
        ends = (steps.rank[sent.source[message]], steps.rank[sent.target[message]])
        phase = exchange_phase(name)
        work = _message(int(ends[0]), int(ends[1]))
        return exchange_template(name, stream, phase, work, waits, parts, tables)

    return Makers(step, move, empty, lambda _: empty)


def _program(variant: Variant, times: Times) -> Program:
    seconds = {"B": times["I"] + times["W"]}.get(variant.kind) or times.get(variant.kind, 0.0)
    change = {"F": 1.0, "B": -1.0, "I": -0.5, "W": -0.5}[variant.kind]
    memory = (Memory("activations", change, "start" if change > 0 else "end"),)
    needs = tuple(-1 - k for k in range(variant.inputs))
    return [Kernel(variant.kind, Fixed(seconds), variant.kind, needs=needs, memory=memory)]
