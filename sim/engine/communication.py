"""How communication runs: it waits for its peers, holds SMs and memory bandwidth, shares links."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sim.engine.clock import Due
from sim.engine.flows import Flow, Flows
from sim.engine.kernels import Kernels
from sim.engine.run import Run


class CommunicationSegments:
    """The segments of communication; links are shared anew when a transfer begins or ends."""

    def __init__(self, run: Run, kernels: Kernels, complete: Callable[[int], None]) -> None:
        graph, segs, machine, facts = run.graph, run.segs, run.machine, run.facts
        leads = segs.order[segs.first[:-1]]
        self._kernels, self._stats = kernels, run.stats
        self._env, self._bounds, self._complete = run.env, run.bounds, complete
        self._first, self._turn = run.first, run.turn
        self._flows = Flows(machine)
        self._flow: dict[int, tuple[Flow, Due]] = {}
        # of each segment:
        self._beside = bytearray(facts.beside[leads].tobytes())
        self._sms = facts.sms[leads].tolist()
        self._part_start = segs.part_start.tolist()
        self._parts_left = np.diff(segs.part_start).tolist()
        self._part_of = graph.part[segs.part_row].tolist()
        # of each part:
        self._missing = run.missing  # members that have not started
        self._member_start = run.member_start
        self._member_segment = run.members
        self._member_tail = graph.part_tail[facts.member].tolist()
        self._part_work = graph.part_work.tolist()
        self._part_turn = run.part_turn  # when it moves; one more when it ends
        self._uses_hbm = bytearray(facts.uses_hbm.tobytes())
        # of each work:
        self._on_links = bytearray(facts.on_links.tobytes())
        self._latency = (machine.latency + machine.fixed).tolist()  # fixed: of recorded groups
        self._transfer = machine.transfer.tolist()
        self._speed, self._hbm = machine.speed.tolist(), machine.hbm.tolist()

    def start(self, s: int) -> None:
        """Start segment ``s``: its kernel holds SMs of its rank until all its parts are done."""
        self._bounds[self._first[s] + s] = self._env._now
        if self._beside[s] and self._sms[s]:
            self._kernels.hold(s, self._sms[s])
        for row in range(self._part_start[s], self._part_start[s + 1]):
            part = self._part_of[row]
            self._missing[part] -= 1
            if not self._missing[part]:
                self._begin(part)

    def _begin(self, part: int) -> None:
        """Begin a part whose members are all there: after the latency, its data moves."""
        work, env = self._part_work[part], self._env
        moves = env._now + self._latency[work]
        if self._on_links[work] or self._uses_hbm[part]:
            env.at(moves, self._part_turn[part], Due(self._move, part))
        if not self._on_links[work]:
            end = moves + self._transfer[work]
            env.at(end, self._part_turn[part] + 1, Due(self._end_part, part))

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
        """Let the part take this share of memory bandwidth on its members' GPUs; 0 takes none."""
        for s in self._member_segment[self._member_start[part] : self._member_start[part + 1]]:
            if self._beside[s]:
                self._kernels.move(s, part, share)

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
                self._env.at(now + tail, self._turn[s], Due(self._end_member, s))
            else:
                self._end_member_now(s)

    def _end_member(self, due: Due) -> None:
        self._end_member_now(due.what)

    def _end_member_now(self, s: int) -> None:
        """Count one part of an op as done; the op ends with its last part."""
        self._parts_left[s] -= 1
        if self._parts_left[s]:
            return
        self._bounds[self._first[s + 1] + s] = self._env._now
        if self._beside[s] and self._sms[s]:
            self._kernels.hold(s, -self._sms[s])
        self._complete(s)

    def settle(self) -> None:
        """Give new speeds to the flows that the changes of this instant can reach."""
        for flow in self._flows.resolve(self._env._now):
            self._schedule(flow)
            self._stats.flows_shared += 1

    def _schedule(self, flow: Flow) -> None:
        """Schedule the end of a flow anew, since it has a new speed."""
        self._flow[flow.number][1].drop()
        due = Due(self._end_part, flow.number)
        self._env.at(flow.end, self._part_turn[flow.number] + 1, due)
        self._flow[flow.number] = (flow, due)
        if self._uses_hbm[flow.number]:
            work = self._part_work[flow.number]
            self._take_memory(flow.number, self._hbm[work] * flow.speed / self._speed[work])
