"""What shares: kernels on a GPU that communication uses too, and communication on common links."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappush
from itertools import accumulate
from typing import Any

import numpy as np

from sim.engine.clock import NORMAL, Clock, Due
from sim.engine.flows import Flow, Flows
from sim.engine.gpu import Chain, Gpu, KernelSeconds
from sim.engine.segments import Segments
from sim.engine.uses import Uses
from sim.graph import Graph
from sim.hardware import Machine


@dataclass(frozen=True)
class Run:
    """What the parts of one simulation have in common; for positions see ``Segments``."""

    env: Clock
    segs: Segments
    machine: Machine
    facts: Uses
    complete: Callable[[int], None]  # a segment has ended
    bounds: array[float]  # of segment s: its start and its ends, from slot first[s] + s on
    first: list[int]
    order: list[int]  # op index that orders a segment's events
    work: array[int]  # of each position
    alone: array[float]  # of each position: seconds when nothing else runs


@dataclass
class Stats:
    """What sharing cost: how often activities met."""

    kernels_slowed: int = 0  # chains of kernels whose end moved
    flows: int = 0  # communications on links that others may use too
    flows_shared: int = 0  # of these, speeds that were found by sharing among several
    resolves: int = 0


class Sharing:
    """Starts the segments that share something, and solves again after each change."""

    def __init__(self, run: Run, graph: Graph, stats: Stats) -> None:
        segs, machine, facts = run.segs, run.machine, run.facts
        leads = segs.order[segs.first[:-1]]
        member = facts.member
        self._run = run
        self._env, self._bounds, self._complete = run.env, run.bounds, run.complete
        self._queue: list[Any] = run.env._queue
        self._end_callbacks = (self._end_chain,)
        self._env.settle = self.settle
        self._first, self._order, self._work = run.first, run.order, run.work
        self._alone = run.alone
        self._rank = segs.rank.tolist()
        seconds = KernelSeconds(machine)
        self._gpus = [Gpu(i, seconds) for i in range(len(segs.ranks))]
        self._flows = Flows(machine)
        self._dirty: set[int] = set()  # GPUs whose state changed at this instant
        self._beside = bytearray(facts.beside[leads].tobytes())
        self._sms = facts.sms[leads].tolist()
        self._part_start = segs.part_start.tolist()
        self._part_of = graph.part[segs.part_row].tolist()
        self._parts_left = np.diff(segs.part_start).tolist()
        self._missing = facts.members.tolist()  # of each part: members that have not started
        self._member_start = facts.member_start.tolist()
        self._member_segment = segs.of[facts.row_op[member]].tolist()
        self._member_tail = graph.part_tail[member].tolist()
        self._part_work = graph.part_work.tolist()
        self._part_order = facts.part_order.tolist()
        self._on_links = bytearray(facts.on_links.tobytes())  # of each work
        self._uses_hbm = bytearray(facts.uses_hbm.tobytes())  # of each part
        self._latency = (machine.latency + machine.fixed).tolist()  # fixed: of recorded groups
        self._transfer = machine.transfer.tolist()
        self._speed, self._hbm = machine.speed.tolist(), machine.hbm.tolist()
        self._flow: dict[int, tuple[Flow, Due]] = {}
        self._stats = stats

    # -- kernels ----------------------------------------------------------------------------------

    def start_chain(self, s: int) -> None:
        """Kernels on a GPU beside whose kernels communication may run."""
        gpu, now = self._gpus[self._rank[s]], self._env._now
        a, b = self._first[s], self._first[s + 1]
        running = gpu.running
        if running:
            self._touch(gpu.rank)
        running[s] = chain = Chain(self._end_callbacks, s, a, now)
        chain.table = seconds = gpu.seconds()
        if gpu.sms or gpu.hbm or len(running) > 1:
            each: Iterable[float] = [seconds[w] for w in self._work[a:b]]
        else:
            each = self._alone[a:b]
        ends = array("d", accumulate(each, initial=now))
        self._bounds[a + s : b + s + 1] = ends
        heappush(self._queue, (ends[-1], NORMAL, self._order[s], chain))

    def _end_chain(self, chain: Chain) -> None:
        chain.callbacks = self._end_callbacks  # it may stand in the queue again
        s = chain.segment
        gpu = self._gpus[self._rank[s]]
        if self._bounds[self._first[s + 1] + s] != self._env._now or s not in gpu.running:
            return  # this end no longer holds
        del gpu.running[s]
        if gpu.running:
            self._touch(gpu.rank)
        self._complete(s)

    def _change_speed(self, gpu: Gpu) -> None:
        """Kernels under way go on as the GPU's new state allows; those behind them follow."""
        new, now = gpu.seconds(), self._env._now
        running = gpu.running
        for s in sorted(running) if len(running) > 1 else running:
            chain = running[s]
            if chain.table is not new:
                old, chain.table = chain.table, new
                self._change_chain(chain, old, new, now)

    def _change_chain(self, chain: Chain, old: array[float], new: array[float], now: float) -> None:
        s, bounds, work = chain.segment, self._bounds, self._work
        a, b = self._first[s] + s, self._first[s + 1] + s
        slot = bisect_right(bounds, now, a + 1, b + 1)  # where the running kernel ends
        if slot > b:
            return  # it ends at this very instant
        last = bounds[b]
        w = work[slot - s - 1]
        if old[w] != new[w]:
            left = chain.advance(slot - s - 1, bounds[slot - 1], old[w], now)
            bounds[slot] = now + left * new[w]
        if slot < b:
            behind = [new[w] for w in work[slot - s : b - s]]
            bounds[slot : b + 1] = array("d", accumulate(behind, initial=bounds[slot]))
        if bounds[b] != last:
            self._stats.kernels_slowed += 1
            heappush(self._queue, (bounds[b], NORMAL, self._order[s], chain))

    # -- communication ----------------------------------------------------------------------------

    def start_communication(self, s: int) -> None:
        """One rank is there: from now on its kernel spins on its SMs until its parts are done."""
        self._bounds[self._first[s] + s] = self._env._now
        if self._beside[s] and self._sms[s]:
            self._hold(s, self._sms[s])
        for row in range(self._part_start[s], self._part_start[s + 1]):
            part = self._part_of[row]
            self._missing[part] -= 1
            if not self._missing[part]:
                self._begin(part)

    def start_meeting(self, s: int) -> None:
        """A communication that shares nothing: its last member to come ends it for all."""
        now = self._env._now
        self._bounds[self._first[s] + s] = now
        part = self._part_of[self._part_start[s]]
        missing = self._missing[part] = self._missing[part] - 1
        if not missing:
            work = self._part_work[part]
            end = now + self._latency[work] + self._transfer[work]
            heappush(
                self._queue, (end, NORMAL, self._part_order[part], Due(self._end_meeting, part))
            )

    def _end_meeting(self, due: Due) -> None:
        part, now = due.what, self._env._now
        a, b = self._member_start[part], self._member_start[part + 1]
        for s in self._member_segment[a:b]:
            self._bounds[self._first[s + 1] + s] = now
            self._complete(s)

    def _hold(self, s: int, sms: int) -> None:
        gpu = self._gpus[self._rank[s]]
        gpu.hold(sms)
        if gpu.running:
            self._touch(gpu.rank)

    def _begin(self, part: int) -> None:
        """All members are there: after the latency, data moves."""
        work, env = self._part_work[part], self._env
        moves = env._now + self._latency[work]
        if self._on_links[work] or self._uses_hbm[part]:
            env.at(moves, self._part_order[part], Due(self._move, part))
        if not self._on_links[work]:
            end = moves + self._transfer[work]
            env.at(end, self._part_order[part], Due(self._end_part, part))

    def _move(self, due: Due) -> None:
        part: int = due.what
        work = self._part_work[part]
        if self._on_links[work]:
            flow = self._flows.join(part, work, self._env._now)
            self._flow[part] = (flow, due)
            self._stats.flows += 1
            if flow.speed:
                self._schedule(flow)
            else:
                self._env.unsettled = True
        elif self._uses_hbm[part]:
            self._take_memory(part, self._hbm[work])

    def _take_memory(self, part: int, share: float) -> None:
        """The part takes this share of memory bandwidth on its members' GPUs; 0 gives it back."""
        for s in self._member_segment[self._member_start[part] : self._member_start[part + 1]]:
            if self._beside[s]:
                gpu = self._gpus[self._rank[s]]
                gpu.move(part, share)
                if gpu.running:
                    self._touch(gpu.rank)

    def _end_part(self, due: Due) -> None:
        part: int = due.what
        if part in self._flow and self._flows.leave(self._flow.pop(part)[0]):
            self._env.unsettled = True
        if self._uses_hbm[part]:
            self._take_memory(part, 0.0)
        now = self._env._now
        for k in range(self._member_start[part], self._member_start[part + 1]):
            s, tail = self._member_segment[k], self._member_tail[k]
            if tail:
                self._env.at(now + tail, self._order[s], Due(self._end_member, s))
            else:
                self._end_member_now(s)

    def _end_member(self, due: Due) -> None:
        self._end_member_now(due.what)

    def _end_member_now(self, s: int) -> None:
        """One part of an op is done; the op ends with its last."""
        self._parts_left[s] -= 1
        if self._parts_left[s]:
            return
        self._bounds[self._first[s + 1] + s] = self._env._now
        if self._beside[s] and self._sms[s]:
            self._hold(s, -self._sms[s])
        self._complete(s)

    # -- solving again ----------------------------------------------------------------------------

    def _touch(self, gpu: int) -> None:
        self._dirty.add(gpu)
        self._env.unsettled = True

    def settle(self) -> None:
        """All events of this instant are applied: new speeds, of links and then of GPUs."""
        self._stats.resolves += 1
        for flow in self._flows.resolve(self._env._now):
            self._schedule(flow)
            self._stats.flows_shared += 1
        if self._dirty:
            dirty, self._dirty = self._dirty, set()
            for rank in sorted(dirty) if len(dirty) > 1 else dirty:
                self._change_speed(self._gpus[rank])

    def _schedule(self, flow: Flow) -> None:
        """The flow has a new speed, so a new end."""
        self._flow[flow.number][1].drop()
        due = Due(self._end_part, flow.number)
        self._env.at(flow.end, self._part_order[flow.number], due)
        self._flow[flow.number] = (flow, due)
        if self._uses_hbm[flow.number]:
            work = self._part_work[flow.number]
            self._take_memory(flow.number, self._hbm[work] * flow.speed / self._speed[work])
