"""A pipeline schedule by itself: fixed seconds per stage, one rank per pipeline rank, no machine.

The graph is built in the same way as that of a training step, and runs on the ideal machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import schedules
from schedules import Plan
from schedules.input_error import InputError
from schedules.times import Seconds, of_each, of_hops, of_stage
from sim import units
from sim.builder.program import Kernel, Program
from sim.builder.slots import inputs
from sim.builder.stamp import Stamp, assemble
from sim.builder.strategies.exchange import Policy, exchange, exchange_phase
from sim.builder.strategies.given import Makers
from sim.builder.strategies.messages import Messages, Steps, columns, messages, torch_order
from sim.builder.strategies.pipeline import Placement, lower
from sim.builder.strategies.variants import Variant
from sim.builder.template import Tables, Template, place
from sim.builder.template import exchange as exchange_template
from sim.engine import DeadlockError, simulate
from sim.graph import Communication, Fixed, Graph, Memory
from sim.html import Shown, table
from sim.machine.hardware import Machine, ideal
from sim.memory.curve import peaks
from sim.timeline import Timeline

DIRECTION = Policy("direction")
Times = Mapping[str, Seconds]
"""The seconds of F, I and W, one number for all stages or one for each; of a transfer, p2p, one for
all or one for each boundary between stages; and of a fused pair, FB: F + I + W unless given."""


EQUAL: Times = {"F": 1.0, "I": 1.0, "W": 1.0, "p2p": 0.0}
"""The seconds of stages unless others are given."""


class ScheduleRun(Shown, dict[str, Any]):
    """The figures of a schedule that ran by itself, with its ``plan`` and its ``timeline``."""

    def __init__(self, plan: Plan, timeline: Timeline) -> None:
        super().__init__(figures(plan, timeline))
        self.plan, self.timeline = plan, timeline

    def _repr_html_(self) -> str:
        """Return a table of the figures for a notebook."""
        rows = [
            ("makespan", units.seconds(self["makespan_s"])),
            ("bubble, share of the makespan", f"{self['bubble_rate_makespan']:.1%}"),
            ("activations, most of a rank", f"{max(self['peak_activations']):g}"),
        ]
        return table(f"Schedule on {len(self.plan)} ranks", rows)


def simulate_schedule(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    times: Times = EQUAL,
    pair: str = "fused",
) -> ScheduleRun:
    """Run a pipeline schedule by itself, with given seconds for its stages.

    The keys of the result are those of ``traincast schedule --json``.

    ``chunks`` is the number of stages of each rank; by default that of the schedule. ``times`` has
    the seconds of a stage's F, I and W, by default 1, and of a transfer, p2p, by default 0.
    ``pair`` says how overlapped pairs run. With ``fused``, a pair is one block of FB seconds whose
    outputs are there at its end. With ``serial``, the two run one after the other, and each output
    is sent when it is ready.

    Raises InputError when there is no such schedule or it does not take such numbers.

    >>> times = {"F": 5.0, "I": 4.0, "W": 3.0, "p2p": 0.0}
    >>> simulate_schedule("one_f_one_b", 4, 8, 1, times)["makespan_s"]  # (m + p - 1)(F + I + W)
    132.0
    """
    stages = chunks or schedules.stages_per_rank(name)
    return simulate_plan(plan_of(name, ranks, microbatches, stages, times), times, pair=pair)


def simulate_plan(
    plan: Plan, times: Times, policy: Policy = DIRECTION, pair: str = "fused"
) -> ScheduleRun:
    """Check any plan and run it; raise InputError for one that cannot run."""
    return ScheduleRun(plan, legal_timeline(plan, times, policy, pair))


def legal_timeline(
    plan: Plan, times: Times, policy: Policy = DIRECTION, pair: str = "fused"
) -> Timeline:
    """Run a plan if it can run.

    Raises InputError for one that cannot (see :func:`schedules.require_legal`).
    """
    # Megatron-LM's exchanges meet in its own schedules; the engine tells where they do not
    schedules.require_legal(plan, "direction" if policy.paired else policy.name, pair)
    try:
        return run_plan(plan, times, policy, pair)
    except DeadlockError as error:
        raise InputError(" ".join(str(error).split())) from None


def plan_of(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int,
    times: Times | None = None,
    policy: str = "direction",
    **options: Any,
) -> Plan:
    """Return the plan of a schedule, which gets its options, and ``chunks`` if it takes them.

    A searched schedule gets ``times``, without which it takes the F, I and W of all stages to be
    equal, and the ``policy`` by which messages are sent, if it takes that. Raises InputError for
    numbers that the schedule does not take.
    """
    given = options | ({"chunks": chunks} if "chunks" in schedules.options(name) else {})
    schedules.check(name, ranks, microbatches, **given)
    if times and schedules.takes_times(name):
        given |= {key: times[key] for key in ("F", "I", "W", "p2p")}
    if "policy" in schedules.options(name):
        given["policy"] = policy
    return schedules.load(name)(ranks, microbatches, **given)


def run_plan(plan: Plan, times: Times, policy: Policy = DIRECTION, pair: str = "fused") -> Timeline:
    """Run any legal plan; the whole backward of a stage takes I + W seconds."""
    graph = plan_graph(plan, times, policy, pair)
    return simulate(graph, _machine(graph, times))


def _machine(graph: Graph, times: Times) -> Machine:
    """Return the machine of the theory, on which each message takes the seconds of its boundary."""
    seconds = times.get("p2p", 0.0)
    return ideal(graph, (lambda work: work.bytes) if isinstance(seconds, Sequence) else seconds)


def figures(plan: Plan, timeline: Timeline) -> dict[str, Any]:
    """Return the makespan, and each rank's busy and idle seconds, peak of activations and order.

    A rate of the bubble is (S - busy) / S. Once S is the makespan, for the rank that idles most;
    once it is the longest span from a rank's first to its last op, for the first such rank.
    """
    graph = timeline.graph
    first, last, busy = (np.zeros(len(plan)) for _ in range(3))
    for rank, stream, ops in graph.by_stream():
        if stream == "compute":
            first[rank], last[rank] = timeline.start[ops[0]], timeline.end[ops[-1]]
            busy[rank] = (timeline.end[ops] - timeline.start[ops]).sum()
    span = last - first
    longest = int(span.argmax())
    return {
        "makespan_s": timeline.seconds,
        "longest_span_s": float(span[longest]),
        "bubble_rate_makespan": _rate(timeline.seconds, float(busy.min())),
        "bubble_rate_longest_span": _rate(float(span[longest]), float(busy[longest])),
        "busy_s": busy.tolist(),
        "idle_s": (timeline.seconds - busy).tolist(),
        "idle_in_span_s": (span - busy).tolist(),
        "peak_activations": [peak.peak_bytes for peak in peaks(timeline)],
        "orders": [[str(step) for step in steps] for steps in plan],
    }


def _rate(seconds: float, busy: float) -> float:
    """Return the share of the seconds that is not busy.

    >>> _rate(8.0, 6.0)
    0.25
    """
    return (seconds - busy) / seconds if seconds else 0.0


def plan_graph(plan: Plan, times: Times, policy: Policy, pair: str = "fused") -> Graph:
    """Return the graph of a plan: an op per step and per end of a message.

    An activation counts as one byte, and so does a message, but for times of each boundary: it then
    has as many bytes as it takes seconds. The two ops of a fused pair run without a pause between
    them; that of the forward takes F seconds, or FB if that is less.
    """
    steps, tables, p2p = columns(plan, pair), Tables(), times.get("p2p", 0.0)
    for kind in "FIW":
        of_each(kind, times.get(kind, 0.0), int(steps.stage.max()) + 1)  # raises for another count
    sent = messages(steps)
    torch = torch_order(steps, sent)
    hops = of_hops(p2p, int(steps.stage.max()) + 1) if isinstance(p2p, Sequence) else None
    works = [_message(steps, sent, k, hops) for k in range(len(sent.source))]
    stamps: list[Stamp] = []
    base = 0
    for rank in range(len(plan)):
        make = _makers(times, works, tables)
        peers = list(range(len(plan)))
        moves = exchange(policy, steps, sent, torch, rank, peers, lambda _: (0,))
        parts = np.arange(len(sent.source))
        at = Placement(base, lambda *_: 0, parts, rank)
        more, base = lower(steps, rank, moves, make, at)
        stamps += more
    return assemble(stamps, tables, tables.works.of(works), {}, {})


def _message(steps: Steps, sent: Messages, k: int, hops: Sequence[float] | None) -> Communication:
    source, target = sent.source[k], sent.target[k]
    size = hops[min(steps.stage[source], steps.stage[target])] if hops else 1.0
    return Communication("p2p", size, (int(steps.rank[source]), int(steps.rank[target])), "pp")


def _makers(times: Times, works: Sequence[Communication], tables: Tables) -> Makers:
    made: dict[object, Template] = {}
    empty = place([], lambda _: (), tables).template

    def step(variant: Variant) -> Template:
        if variant not in made:
            made[variant] = place(_program(variant, times), lambda _: (), tables).template
        return made[variant]

    def move(name: str, stream: str, message: int, waits: int, parts: int) -> Template:
        phase = exchange_phase(name)
        return exchange_template(name, stream, phase, works[message], waits, parts, tables)

    return Makers(step, move, lambda _: empty, lambda _: empty)


def _program(variant: Variant, times: Times) -> Program:
    seconds = _seconds(variant, times)
    change = {"F": 1.0, "B": -1.0, "I": -0.5, "W": -0.5}[variant.kind]
    memory = (Memory("activations", change, "start" if change > 0 else "end"),)
    needs = inputs(variant.inputs)
    return [Kernel(variant.kind, Fixed(seconds), variant.kind, needs=needs, memory=memory)]


def _seconds(variant: Variant, times: Times) -> float:
    f, i, w = (of_stage(times.get(kind, 0.0), variant.stage) for kind in "FIW")
    forward, backward = f, i + w
    if variant.pair and "FB" in times:
        both = _one(times, "FB", 0.0)
        forward = min(_least(times.get("F", 0.0)), both)  # the same whatever the other's stage
        backward = both - forward
    return {"F": forward, "B": backward, "I": i, "W": w}[variant.kind]


def _least(seconds: Seconds) -> float:
    return min(seconds) if isinstance(seconds, Sequence) else seconds


def _one(times: Times, key: str, default: float) -> float:
    """Return the one number of ``key`` for all stages; raise InputError if there are several."""
    value = times.get(key, default)
    if isinstance(value, Sequence):
        raise InputError(f"{key} must be one number for all stages, not {len(value)}")
    return value
