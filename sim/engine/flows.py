"""Communications that move data on shared links: how fast each moves, and until when."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sim.machine.hardware import Machine
from sim.machine.network import fair_rates


class Flow:
    """One communication that moves data; its end is known as long as its speed stays."""

    __slots__ = ("coefficients", "end", "left", "links", "number", "since", "speed")

    def __init__(
        self, number: int, size: float, links: list[int], coefficients: list[float], now: float
    ) -> None:
        self.number = number
        self.left = size  # bytes on its most loaded link
        self.links = links
        self.coefficients = coefficients
        self.speed = 0.0
        self.since = now
        self.end = float("inf")

    def change(self, speed: float, now: float) -> None:
        """Move on at ``speed`` from ``now``; what is left never falls below 0 by rounding."""
        if now != self.since:
            self.left = max(0.0, self.left - self.speed * (now - self.since))
        self.speed, self.since = speed, now
        self.end = now + self.left / speed


class Flows:
    """The flows of one simulation; :meth:`resolve` shares the links anew after changes."""

    def __init__(self, machine: Machine) -> None:
        self._size = machine.size.tolist()
        self._start = machine.link_start.tolist()
        self._link = machine.link.tolist()
        self._coefficient = machine.coefficient.tolist()
        links = np.unique(machine.link)
        self._capacity = dict(zip(links.tolist(), machine.capacity[links].tolist(), strict=True))
        self._speed = machine.speed.tolist()
        self._on: dict[int, dict[int, Flow]] = {link: {} for link in self._capacity}
        self._touched: set[int] = set()

    def join(self, number: int, work: int, now: float) -> Flow:
        """Start to move the bytes of ``work``; if nobody is on its links, at full speed."""
        rows = slice(self._start[work], self._start[work + 1])
        flow = Flow(number, self._size[work], self._link[rows], self._coefficient[rows], now)
        shared = False
        for link in flow.links:
            on = self._on[link]
            shared = shared or bool(on)
            on[number] = flow
        if shared:
            self._touched.update(flow.links)
        else:
            flow.change(self._speed[work], now)
        return flow

    def leave(self, flow: Flow) -> bool:
        """Take a flow that has moved all its bytes off its links; return if others use these."""
        left = False
        for link in flow.links:
            on = self._on[link]
            del on[flow.number]
            if on:
                self._touched.add(link)
                left = True
        return left

    def resolve(self, now: float) -> list[Flow]:
        """Share the links among all flows that the changes can reach; return those that changed.

        Flows that no chain of shared links ties to a change keep their speed, to the bit.
        """
        changed: list[Flow] = []
        if not self._touched:
            return changed
        for flows in self._components():
            speeds = self._rates(flows)
            for flow, speed in zip(flows, speeds, strict=True):
                if speed != flow.speed:
                    flow.change(speed, now)
                    changed.append(flow)
        return changed

    def _components(self) -> Iterable[list[Flow]]:
        """Yield the groups of flows that links tie to a touched link, each in order of flow."""
        seen_links: set[int] = set()
        for touched in sorted(self._touched):
            if touched in seen_links or not self._on[touched]:
                continue
            flows: dict[int, Flow] = {}
            frontier = [touched]
            seen_links.add(touched)
            while frontier:
                for number, flow in self._on[frontier.pop()].items():
                    if number not in flows:
                        flows[number] = flow
                        fresh = [link for link in flow.links if link not in seen_links]
                        seen_links.update(fresh)
                        frontier += fresh
            yield [flows[number] for number in sorted(flows)]
        self._touched.clear()

    def _rates(self, flows: list[Flow]) -> list[float]:
        capacity = self._capacity
        if len(flows) == 1:
            (flow,) = flows
            pairs = zip(flow.links, flow.coefficients, strict=True)
            return [min(capacity[link] / c for link, c in pairs if c > 0)]
        links = sorted({link for flow in flows for link in flow.links})
        local = {link: i for i, link in enumerate(links)}
        starts, ends, coefficients = [0], [], []
        for flow in flows:
            ends += [local[link] for link in flow.links]
            coefficients += flow.coefficients
            starts.append(len(ends))
        n, m = len(flows), len(links)
        speeds = [0.0] * n
        room = [capacity[link] for link in links]
        scratch = ([0.0] * m, [0.0] * m, [0.0] * m)
        fair_rates(starts, ends, coefficients, room, speeds, *scratch, [0] * n)
        return speeds
