"""One run from its first step to its last, in SimPy: an event wherever something changes.

Three processes act on the job: failures, spells of slow nodes, and repairs. Between two events
steps and checkpoints go on by themselves (:mod:`sim.goodput.progress`), so that a run of weeks
takes as many events as it has failures.
"""

from __future__ import annotations

from collections.abc import Generator
from math import inf
from random import Random
from typing import Any, NamedTuple

import simpy

from sim.goodput.faults import SPARED, Faults
from sim.goodput.pace import Pace
from sim.goodput.progress import Progress

Events = Generator[simpy.Event, Any, None]
PARTS = ("steps", "slow_steps", "checkpoints", "lost_work", "detection", "restart", "waiting")
"""What the time of a run goes to, in the order of pictures; waiting is for a spare node."""


class Outcome(NamedTuple):
    """What came of one run."""

    seconds: float
    parts: dict[str, float]
    """seconds by what they went to (:data:`PARTS`), which add up to those of the run"""
    failures: dict[str, int]


def simulate(pace: Pace, faults: Faults, seed: str) -> Outcome:
    """Run a job to its end; the same seed gives the same run."""
    env = simpy.Environment()
    job = Job(env, pace, faults, seed)
    env.run(job.process)
    return job.outcome()


class Job:
    """The job and what acts on it."""

    def __init__(self, env: simpy.Environment, pace: Pace, faults: Faults, seed: str) -> None:
        self.env, self.faults, self.progress = env, faults, Progress(pace)
        self.spent, self.counts = dict.fromkeys(PARTS, 0.0), dict.fromkeys(faults.rates, 0)
        self.factor = 1.0
        self.does = "steps"  # or the part that it spends time on after a failure
        self.draw = {of: Random(f"{seed} {of}") for of in ("failures", "repairs", "slow")}
        self.spares = simpy.Container(env, init=faults.spares or 0)
        self.process = env.process(self.train())
        if faults.mtbf < inf:
            env.process(self.fail())
        if faults.slow:
            env.process(self.slow())

    def outcome(self) -> Outcome:
        """Return where the time went."""
        pace, progress = self.progress.pace, self.progress
        self.spent |= {
            "steps": pace.steps * pace.step,
            "slow_steps": progress.now.slow,
            "checkpoints": progress.stalled,
        }
        return Outcome(self.env.now, self.spent, self.counts)

    def train(self) -> Events:
        """Run steps and checkpoints; go back to what is safe after each failure."""
        while not self.progress.finished:
            begin, factor = self.env.now, self.factor
            try:
                yield self.env.timeout(self.progress.ahead(factor))
                self.progress.advance(inf, factor)
            except simpy.Interrupt as found:
                self.progress.advance(self.env.now - begin, factor)
                if found.cause and not self.progress.finished:
                    self.spent["lost_work"] += self.progress.lose()
                    yield from self.recover(found.cause)

    def recover(self, kind: str) -> Events:
        """Notice the failure, replace the node, start again; from the top if another one comes."""
        broken = int(kind in SPARED)
        while True:
            try:
                yield from self.spend("detection", self.faults.detection)
                while broken:
                    yield from self.replace()
                    broken -= 1
                read = self.progress.pace.costs.read
                yield from self.spend("restart", self.faults.restart + read)
                break
            except simpy.Interrupt as another:
                broken += another.cause in SPARED
        self.does = "steps"

    def spend(self, part: str, seconds: float) -> Events:
        """Let time pass that goes to one part."""
        self.does, begin = part, self.env.now
        try:
            yield self.env.timeout(seconds)
        finally:
            self.spent[part] += self.env.now - begin

    def replace(self) -> Events:
        """Send a node to be repaired and take a spare; wait for one, if there is none."""
        if self.faults.spares is None:
            return
        self.env.process(self.repair())
        self.does, begin = "waiting", self.env.now
        yield self.spares.get(1)
        self.spent["waiting"] += self.env.now - begin

    def repair(self) -> Events:
        """Repair a node, which is a spare then."""
        yield self.env.timeout(self.later("repairs", self.faults.repair))
        self.spares.put(1)

    def fail(self) -> Events:
        """Interrupt the job with failures, whose kinds come in proportion to their rates."""
        while True:
            yield self.env.timeout(self.later("failures", self.faults.mtbf))
            kind = self.kind(self.draw["failures"].random() / self.faults.mtbf)
            if self.does != "waiting" and self.process.is_alive:  # a job that waits is not there
                self.counts[kind] += 1
                self.process.interrupt(kind)

    def kind(self, at: float) -> str:
        """Return the kind of failure at this place of all rates, one after the other."""
        found = ""
        for name, rate in self.faults.rates.items():
            if rate and at >= 0.0:
                found = name
            at -= rate
        return found

    def slow(self) -> Events:
        """Let nodes be slow for a while; the slowest of them sets the pace."""
        of, there = self.faults.slow, list[float]()
        assert of

        def spell(factor: float, seconds: float) -> Events:
            there.append(factor)
            self.change(max(there))
            yield self.env.timeout(seconds)
            there.remove(factor)
            self.change(max(there, default=1.0))

        while True:
            yield self.env.timeout(self.later("slow", of.between))
            factor = of.factors[int(self.draw["slow"].random() * len(of.factors))]
            self.env.process(spell(factor, self.later("slow", of.lasts)))

    def change(self, factor: float) -> None:
        """Let steps take another factor from now on."""
        changes, self.factor = factor != self.factor, factor
        if changes and self.does == "steps" and self.process.is_alive:
            self.process.interrupt("")

    def later(self, what: str, mean: float) -> float:
        """Draw the time to the next event of one kind, which has no memory."""
        return self.draw[what].expovariate(1.0 / mean) if mean else 0.0
