"""How kernels run on a GPU that they share with communication or with other kernels."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from heapq import heappush
from itertools import accumulate
from typing import Any

from sim.engine.clock import NORMAL
from sim.engine.gpu import KernelChain, KernelSeconds, RankGpu
from sim.engine.run import Run


class Kernels:
    """The segments of such kernels; their speed changes with the state of their GPU."""

    def __init__(self, run: Run, complete: Callable[[int], None]) -> None:
        self._env, self._bounds, self._complete = run.env, run.bounds, complete
        self._queue: list[Any] = run.env._queue
        self._first, self._turn, self._work = run.first, run.turn, run.work
        self._alone, self._stats = run.alone, run.stats
        factor = run.machine.times  # of each position, if kernels differ in more than their work
        self._factor = None if factor is None else factor[run.segs.order].tolist()
        self._rank = run.segs.rank.tolist()
        seconds = KernelSeconds(run.machine)
        self._gpus = [RankGpu(i, seconds) for i in range(len(run.segs.ranks))]
        self._dirty: set[int] = set()  # GPUs whose state changed at this instant

    def start(self, s: int) -> None:
        """Start segment ``s`` of kernels, beside which communication or other kernels may run."""
        gpu, now = self._gpus[self._rank[s]], self._env._now
        a, b = self._first[s], self._first[s + 1]
        running = gpu.running
        if running:
            self.touch(gpu.rank)
        running[s] = chain = KernelChain((self._end_chain,), s, a, now)
        chain.table = seconds = gpu.seconds()
        if gpu.sms or gpu.hbm or len(running) > 1:
            each: Iterable[float] = self._seconds(seconds, a, b)
        else:
            each = self._alone[a:b]
        ends = array("d", accumulate(each, initial=now))
        self._bounds[a + s : b + s + 1] = ends
        heappush(self._queue, (ends[-1], NORMAL, self._turn[s], chain))

    def _seconds(self, table: array[float], a: int, b: int) -> Iterable[float]:
        """Return the seconds of the kernels at positions ``a:b``; ``table`` has those of works."""
        each = [table[w] for w in self._work[a:b]]
        if self._factor is None:
            return each
        return [seconds * factor for seconds, factor in zip(each, self._factor[a:b], strict=True)]

    def _end_chain(self, chain: KernelChain) -> None:
        chain.callbacks = (self._end_chain,)  # it may stand in the queue again
        s = chain.segment
        gpu = self._gpus[self._rank[s]]
        if self._bounds[self._first[s + 1] + s] != self._env._now or s not in gpu.running:
            return  # this end no longer holds
        del gpu.running[s]
        if gpu.running:
            self.touch(gpu.rank)
        self._complete(s)

    def _change_speed(self, gpu: RankGpu) -> None:
        """Move the ends of the kernels that run on the GPU, and of those behind them."""
        new, now = gpu.seconds(), self._env._now
        running = gpu.running
        for s in sorted(running) if len(running) > 1 else running:
            chain = running[s]
            if chain.table is not new:
                old, chain.table = chain.table, new
                self._change_chain(chain, old, new, now)

    def _change_chain(
        self, chain: KernelChain, old: array[float], new: array[float], now: float
    ) -> None:
        s, bounds = chain.segment, self._bounds
        a, b = self._first[s] + s, self._first[s + 1] + s
        slot = bisect_right(bounds, now, a + 1, b + 1)  # where the running kernel ends
        if slot > b:
            return  # it ends at this very instant
        last = bounds[b]
        at = slot - s - 1
        w = self._work[at]
        if old[w] != new[w]:
            times = 1.0 if self._factor is None else self._factor[at]
            left = chain.advance(at, bounds[slot - 1], old[w] * times, now)
            bounds[slot] = now + left * (new[w] * times)
        if slot < b:
            behind = self._seconds(new, slot - s, b - s)
            bounds[slot : b + 1] = array("d", accumulate(behind, initial=bounds[slot]))
        if bounds[b] != last:
            self._stats.kernels_slowed += 1
            heappush(self._queue, (bounds[b], NORMAL, self._turn[s], chain))

    def hold(self, s: int, sms: int) -> None:
        """Let the communication of segment ``s`` hold ``sms`` SMs more, or fewer when negative."""
        gpu = self._gpus[self._rank[s]]
        gpu.hold(sms)
        if gpu.running:
            self.touch(gpu.rank)

    def move(self, s: int, part: int, share: float) -> None:
        """Let a part take this share of memory bandwidth on segment ``s``'s GPU; 0 takes none."""
        gpu = self._gpus[self._rank[s]]
        gpu.move(part, share)
        if gpu.running:
            self.touch(gpu.rank)

    def touch(self, gpu: int) -> None:
        """Note that the state of a GPU changed while kernels run on it."""
        self._dirty.add(gpu)
        self._env.unsettled = True

    def settle(self) -> None:
        """Give kernels new speeds on every GPU whose state changed at this instant."""
        if self._dirty:
            dirty, self._dirty = self._dirty, set()
            for rank in sorted(dirty) if len(dirty) > 1 else dirty:
                self._change_speed(self._gpus[rank])
