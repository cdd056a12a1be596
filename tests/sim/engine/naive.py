"""A second simulator, for checks alone: naive, slow, and without a line of the engine's.

At every event all rates are found again, from the columns of a graph and the tables of a machine.
It proves nothing about who can meet whom, cuts no segments and keeps no queue. What it does is what
``docs/design.md`` and the docstrings of ``sim.graph`` and ``sim.machine.hardware`` say:

- an op starts when the one before it on its stream has ended, and all that it waits for, plus lags;
- a communication holds SMs of its rank from its start to its end; a part begins when all its ops
  have started, waits its latency, then moves its bytes; all its ops end with it, plus their tails;
- links are shared by max-min fairness among all parts whose data moves;
- kernels run at what communication leaves of SMs and memory bandwidth, in equal shares; arithmetic
  also loses a part of its speed with the memory bandwidth that communication takes.
"""

from __future__ import annotations

from collections import Counter
from math import inf, nan

from sim.graph import Compute, Fixed, Graph, Work
from sim.machine.hardware import Machine

SAME = 1 + 1e-14  # ends of one instant, but for rounding


def times(graph: Graph, machine: Machine) -> tuple[list[float], list[float]]:
    """Start and end of every op, NaN for what never runs."""
    state = _State(graph, machine)
    while state.step():
        pass
    return state.start, state.end


class _State:
    """Where a run stands at time ``now``; units are seconds and bytes."""

    def __init__(self, graph: Graph, machine: Machine) -> None:
        n = len(graph)
        self.machine, self.capacity = machine, machine.capacity.tolist()
        self.lag, lags, waits = graph.lag.tolist(), graph.wait_lag.tolist(), graph.wait_on.tolist()
        self.waits = [
            [(waits[k], lags[k]) for k in range(graph.wait_start[i], graph.wait_start[i + 1])]
            for i in range(n)
        ]
        self.now, self.start, self.end = 0.0, [nan] * n, [nan] * n
        self.rank, self.work = graph.rank.tolist(), graph.work.tolist()
        self.part_work = graph.part_work.tolist()
        self.kernel = [_is_kernel(work) for work in graph.works]
        self.fixed_seconds = (machine.latency + machine.fixed).tolist()
        self.arithmetic, self.memory = machine.arithmetic.tolist(), machine.memory.tolist()
        self.links = [
            {
                int(machine.link[k]): float(machine.coefficient[k])
                for k in range(machine.link_start[w], machine.link_start[w + 1])
                if machine.coefficient[k] > 0
            }
            for w in range(len(graph.works))
        ]
        self.before: list[int | None] = [None] * n
        self.streams: dict[tuple[int, int], list[int]] = {}
        for i in range(n):
            ops = self.streams.setdefault((self.rank[i], int(graph.stream[i])), [])
            self.before[i] = ops[-1] if ops else None
            ops.append(i)
        self.tails: list[list[tuple[int, float]]] = [  # of each op: its parts, and tails
            [
                (int(graph.part[k]), float(graph.part_tail[k]))
                for k in range(graph.part_start[i], graph.part_start[i + 1])
            ]
            for i in range(n)
        ]
        self.members: dict[int, list[int]] = {}
        for i in range(n):
            for part, _ in self.tails[i]:
                self.members.setdefault(part, []).append(i)
        self.alone: dict[int, float] = {}  # ops that take their own time -> seconds left
        self.kernels: dict[int, float] = {}  # kernels that run -> share left
        self.spinning: dict[int, int] = {}  # communications that have started -> SMs they hold
        self.begins: dict[int, float] = {}  # parts in their latency -> when data moves
        self.moving: dict[int, float] = {}  # parts -> bytes left on their most loaded link
        self.part_end: dict[int, float] = {}

    def step(self) -> bool:
        """Apply all that is due now, and go on to the next event; False if there is none."""
        while self.change():
            pass
        speeds = self.speeds()
        rates = {**self.kernel_rates(speeds), **dict.fromkeys(self.alone, 1.0)}
        ends = {i: self.now + (self.kernels | self.alone)[i] / rate for i, rate in rates.items()}
        stops = {p: self.now + left / speeds[p] for p, left in self.moving.items()}
        known = [*self.begins.values(), *self.releases(), *self.member_ends()]
        later = [time for time in known if time > self.now]
        to = min([*ends.values(), *stops.values(), *later], default=inf)
        if to == inf:
            return False
        for lefts, rate_of, when in (
            (self.kernels, rates, ends),
            (self.alone, rates, ends),
            (self.moving, speeds, stops),
        ):
            for key in lefts:
                done = when[key] <= to * SAME
                lefts[key] = 0.0 if done else lefts[key] - rate_of[key] * (to - self.now)
        self.now = to
        return True

    def change(self) -> bool:
        """Apply what is due now; whether anything was."""
        ended = [i for of in (self.alone, self.kernels) for i, left in of.items() if left <= 0.0]
        moved = [part for part, left in self.moving.items() if left <= 0.0]
        moving = [part for part, time in self.begins.items() if time <= self.now]
        for part in moved:
            del self.moving[part]
            self.part_end[part] = self.now
        for part in moving:
            del self.begins[part]
            self.moving[part] = float(self.machine.size[self.part_work[part]])
        over = [i for i in self.spinning if self.over(i) <= self.now]
        for i in ended + over:
            for running in (self.alone, self.kernels, self.spinning):
                running.pop(i, None)
            self.end[i] = self.now
        heads = [i for i in self.heads() if self.release(i) <= self.now]
        for i in heads:
            self.begin(i)
        return bool(ended or moved or moving or over or heads)

    def heads(self) -> list[int]:
        """The next op of each stream."""
        for ops in self.streams.values():
            while ops and self.start[ops[0]] == self.start[ops[0]]:
                ops.pop(0)
        return [ops[0] for ops in self.streams.values() if ops]

    def release(self, i: int) -> float:
        """When the op at the head of a stream starts, as far as that is known; else never."""
        before = self.before[i]
        needs = [self.lag[i] + (0.0 if before is None else self.end[before])]
        needs += [self.end[j] + lag for j, lag in self.waits[i]]
        return max(needs) if all(need == need for need in needs) else inf

    def releases(self) -> list[float]:
        return [self.release(i) for i in self.heads()]

    def begin(self, i: int) -> None:
        self.start[i] = self.now
        work, factor = self.work[i], self.machine.factor
        if not self.tails[i]:
            times = 1.0 if factor is None else float(factor[i])
            if self.kernel[work]:
                self.kernels[i] = 1.0
            else:
                self.alone[i] = float(self.machine.alone[work]) * times
            return
        self.spinning[i] = max(int(self.machine.sms[self.part_work[p]]) for p, _ in self.tails[i])
        for part, _ in self.tails[i]:
            if all(self.start[j] == self.start[j] for j in self.members[part]):
                self.begins[part] = self.now + self.fixed_seconds[self.part_work[part]]

    def over(self, i: int) -> float:
        """When a communication ends, as far as that is known; else never."""
        return max(self.part_end.get(part, inf) + tail for part, tail in self.tails[i])

    def member_ends(self) -> list[float]:
        return [self.over(i) for i in self.spinning]

    def speeds(self) -> dict[int, float]:
        """Of each part whose data moves, in B/s on its most loaded link."""
        flows = {part: self.links[self.part_work[part]] for part in self.moving}
        out = {p: float(self.machine.speed[self.part_work[p]]) for p in flows if not flows[p]}
        out |= fair({p: links for p, links in flows.items() if links}, self.capacity)
        return out

    def kernel_rates(self, speeds: dict[int, float]) -> dict[int, float]:
        """Of each kernel that runs, in shares of it per second."""
        machine = self.machine
        if not self.kernels:
            return {}
        beside = Counter(self.rank[i] for i in self.kernels)
        sms, hbm = Counter[int](), dict.fromkeys(beside, 0.0)
        for i, held in self.spinning.items():
            sms[self.rank[i]] += held
        for part, speed in speeds.items():
            work = self.part_work[part]
            share = speed / machine.speed[work] if self.links[work] else 1.0
            for i in self.members[part]:
                if self.rank[i] in hbm:
                    hbm[self.rank[i]] += float(machine.hbm[work] * share)
        out = {}
        for i in self.kernels:
            w, r = self.work[i], self.rank[i]
            x = max(machine.gpu_sms - sms[r], 1) / machine.gpu_sms / beside[r]
            x *= max(1 - machine.contention * hbm[r], 0.01)
            y = max(1.0 - hbm[r], 0.01) / beside[r]
            seconds = max(self.arithmetic[w] / x, self.memory[w] / y) + self.fixed_seconds[w]
            seconds *= 1.0 if machine.factor is None else float(machine.factor[i])
            out[i] = 1.0 / seconds if seconds else inf
        return out


def fair(flows: dict[int, dict[int, float]], capacity: list[float]) -> dict[int, float]:
    """Max-min fair speeds by filling with water: all rise until a link is full, whose flows stay.

    ``flows`` has the coefficient of each on each of its links.
    """
    speed: dict[int, float] = {}
    while len(speed) < len(flows):
        rising = {flow: links for flow, links in flows.items() if flow not in speed}
        levels: dict[int, float] = {}
        for link in {link for links in rising.values() for link in links}:
            taken = sum(speed[f] * flows[f].get(link, 0.0) for f in speed)
            wanted = sum(links.get(link, 0.0) for links in rising.values())
            levels[link] = max(0.0, capacity[link] - taken) / wanted
        lowest = min(levels.values())
        full = {link for link, level in levels.items() if level <= lowest * (1 + 1e-12)}
        speed |= {flow: lowest for flow, links in rising.items() if full & set(links)}
    return speed


def _is_kernel(work: Work) -> bool:
    """Whether it runs on the SMs of a GPU, if it takes part in no communication."""
    if isinstance(work, Fixed):
        return work.kind not in ("communication", "copy", "host")
    return isinstance(work, Compute)
