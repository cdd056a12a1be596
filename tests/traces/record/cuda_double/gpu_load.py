"""The clock and the power of the GPU that is not there, from constants that a test chooses.

``DOUBLE_LOAD`` has them as JSON; without it every kernel runs at boost clock. All kernels take
``longer`` times what they do without, so that there are fewer of them. Products that run
back to back for b seconds take 1 + derating b / (b + tau) times as long in the mean. Any mixture
sinks to the clock c at which its power is the cap, where arithmetic takes (1 + derating)^exponent
c^exponent of cap less idle, attention ``attention`` of that, zeros 0.6 of it, and kernels that
memory limits ``memory``. Beside a collective that holds ``sms`` SMs and a share h of the memory
bandwidth, products keep (1 - sms / all) (1 - contention h) of their speed.
"""

from __future__ import annotations

import collections
import json
import math
import os
import random
import sys

REST = 0.1  # idle seconds after which a burst begins anew
MEAN = 0.1  # seconds over which what runs is averaged
TOLD = 1.0  # seconds whose mean power NVML tells
BOOST = 1.98e9  # Hz
ZEROS = 0.6
NVLINK = 400e9  # B/s each way
BANDWIDTH = 3352e9  # B/s of HBM3, of which transfers take a share
NCCL_SMS = 24
HBM = {"all_gather": 3.0, "reduce_scatter": 3.0, "all_reduce": 3.0, "peer": 2.0}  # per byte sent
ARITHMETIC = ("tensor", "zeros", "attention")


class Load:
    """What has run of late, and so the clock; one burst is what runs without a rest."""

    def __init__(self):
        self.of = json.loads(os.environ.get("DOUBLE_LOAD", "{}"))
        rank = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 0
        self.draw = random.Random(self.of.get("seed", 0) + rank)
        speeds = self.of.get("speeds", [1.0] * (rank + 1))
        self.slow = self.of.get("longer", 1.0) / speeds[rank]
        self.begin, self.end, self.shares = 0.0, -1.0, {}
        self.drawn = collections.deque()  # (start, end, watts) of late
        self.transfers = []  # (start, end, share of the speed that products beside it keep)

    def seconds(self, kind, seconds, start):
        """What work of a kind takes that takes ``seconds`` at boost clock."""
        if not self.of or kind is None:
            return seconds
        if start - self.end > REST:
            self.begin, self.shares = start, {kind: 1.0}
        else:
            self.pass_by("wait", start - self.end)
        alone = took = seconds * self.slow * (1.0 + self.of["noise"] * self.draw.gauss(0.0, 1.0))
        clock = 1.0
        for _ in range(4 if kind in ARITHMETIC else 0):  # at the middle of the kernel
            clock = self.clock(start + took / 2 - self.begin)
            took = alone / clock
        if kind in ARITHMETIC:
            took = self.beside(start, took)
        self.pass_by(kind, took)
        self.end = start + took
        self.drawn.append((start, self.end, self.power(kind, clock)))
        while self.drawn[0][1] < start - 2.0 * TOLD:  # the queue is shorter than the rest of it
            self.drawn.popleft()
        return took

    def power(self, kind, clock):
        """Watts above idle of a kind of work."""
        share = self.of["memory"] if kind == "memory" else 0.0
        if kind in ARITHMETIC:
            share = self.weights()[kind] * clock ** self.of["exponent"]
        return share * (self.of["cap"] - self.of["idle"])

    def pass_by(self, kind, seconds):
        keep = math.exp(-seconds / MEAN)
        self.shares = {one: share * keep for one, share in self.shares.items()}
        self.shares[kind] = self.shares.get(kind, 0.0) + 1.0 - keep

    def weights(self):
        full = (1.0 + self.of["derating"]) ** self.of["exponent"]
        return {"tensor": full, "zeros": ZEROS * full, "attention": self.of["attention"] * full}

    def powers(self):
        """Of arithmetic at boost clock, and of memory, both as shares of cap less idle."""
        weights = self.weights()
        memory = self.of["memory"] * self.shares.get("memory", 0.0)
        return sum(weights[k] * self.shares.get(k, 0.0) for k in weights), memory

    def clock(self, burst):
        arithmetic, memory = self.powers()
        if arithmetic + memory <= 1.0:
            return 1.0
        low = 1.0 / (((1.0 - memory) / arithmetic) ** (1.0 / self.of["exponent"])) - 1.0
        y = burst / self.of["tau"]  # the mean over a burst is 1 + low y / (y + 1)
        return ((1.0 + low) * y * y + 2.0 * y + 1.0) / ((1.0 + low) * y + 1.0) ** 2

    def watts(self, now):
        """The mean of the last second."""
        spans = ((max(a, now - TOLD), min(b, now), watts) for a, b, watts in self.drawn)
        above = sum((b - a) * watts for a, b, watts in spans if b > a) / TOLD
        noise = 1.0 + self.of["power_noise"] * self.draw.gauss(0.0, 1.0)
        return (self.of["idle"] + above) * noise

    def beside(self, start, seconds):
        """How long work of ``seconds`` takes beside the transfers that were issued before it."""
        now, left = start, seconds
        for begin, end, keeps in sorted(self.transfers):
            if end <= now:
                continue
            if begin - now >= left:
                break
            left -= max(begin - now, 0.0)
            now = max(begin, now)
            if (end - now) * keeps >= left:
                return now + left / keeps - start
            left, now = left - (end - now) * keeps, end
        return now + left - start

    def transfer(self, gpu, name, size):
        """Send ``size`` bytes over NVLink on the current stream."""
        stream, seconds = gpu.stack[-1], size / NVLINK
        start = max(stream.ready, gpu.host, gpu.free.get("nvlink", 0.0))
        gpu.run(seconds, "nvlink")
        sms = 0 if name == "peer" else NCCL_SMS
        held = HBM[name] * NVLINK / BANDWIDTH
        keeps = (1.0 - sms / 132) * (1.0 - self.of.get("contention", 0.0) * held)
        recent = [one for one in self.transfers if one[1] > gpu.host - REST]
        self.transfers = [*recent, (start, start + seconds, keeps)]


def collectives(gpu):
    """Functions of torch.distributed that only let time pass."""
    import torch.distributed as dist

    def sent(name, whole, times, group):
        share = (dist.get_world_size(group) - 1) / dist.get_world_size(group)
        gpu.load.transfer(gpu, name, times * share * whole.numel() * whole.element_size())

    def all_gather_into_tensor(output_tensor, input_tensor, group=None, async_op=False):
        sent("all_gather", output_tensor, 1, group)

    def reduce_scatter_tensor(output, input, op=None, group=None, async_op=False):  # noqa: A002
        sent("reduce_scatter", input, 1, group)

    def all_reduce(tensor, op=None, group=None, async_op=False):
        sent("all_reduce", tensor, 2, group)

    return [all_gather_into_tensor, reduce_scatter_tensor, all_reduce]
