"""A GPU that is not there: torch.cuda with CUDA's order of streams and events, on its own clock.

An op starts when its stream has come to it and its engine is free: products and attentions have all
SMs to themselves, copies over the host's link the link in their direction; other kernels and spins
run beside anything. The host takes no time but what it sleeps under load (``gpu_load``, which has
clock and power). Calls must fit the signatures of the real functions.

Where a worker only measures, tensors have no data but a device, so that mixing up devices is an
error, and sizes are a GPU's; where ranks exchange messages, tensors are the CPU's, over gloo.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import sys
import time
import types
from pathlib import Path

import gpu_load

CLOCK = 1.5e9  # cycles/s
PEAK = 400e12  # FLOP/s of all SMs
MEMORY = 2e12  # B/s, of bytes copied and of bytes that kernels read and write
LINK = 50e9  # B/s, each way
SMS = 132
BEFORE, PEAK_BYTES = 1 << 20, 3 << 20  # allocated, always
UUID = "0d0b1e00-0000-0000-0000-000000000000"

gpus = []  # the one of this process, once torch is loaded


class Gpu:
    """The state of the device, in seconds."""

    def __init__(self):
        self.host = 0.0
        self.free = {}  # by engine
        self.streams = []
        self.stack = [Stream(self)]
        self.device = None
        self.load = gpu_load.Load()

    def run(self, seconds, engine=None, kind=None):
        """Issue an op on the current stream; ``kind`` is for the clock."""
        stream = self.stack[-1]
        start = max(stream.ready, self.host, self.free.get(engine, 0.0) if engine else 0.0)
        seconds = self.load.seconds(kind, seconds, start)
        stream.ready = start + seconds
        if engine:
            self.free[engine] = stream.ready


class Stream:
    """In order, from when the host issued an op and what it waits for has ended."""

    def __init__(self, gpu, sms=None):
        self.gpu, self.ready, self.sms = gpu, gpu.host, sms
        gpu.streams.append(self)

    def wait_event(self, event):
        assert event.time is not None, "waits for an event that nobody has recorded"
        self.ready = max(self.ready, event.time)

    def synchronize(self):
        self.gpu.host = max(self.gpu.host, self.ready)


class Event:
    """An instant of a stream, known once the host has waited for it."""

    def __init__(self, gpu, enable_timing=False):
        self.gpu, self.timed, self.time = gpu, enable_timing, None

    def record(self, stream=None):
        self.time = max((stream or self.gpu.stack[-1]).ready, self.gpu.host)

    def synchronize(self):
        self.gpu.host = max(self.gpu.host, self.time)

    def elapsed_time(self, end_event):
        for event in (self, end_event):
            if not event.timed or event.time is None:
                raise RuntimeError("both events should be recorded, and created to keep time")
            if event.time > self.gpu.host:
                raise RuntimeError("CUDA error: device not ready")
        return (end_event.time - self.time) * 1e3


def install(torch):
    """Replace what torch.cuda does, and where tensors are."""
    import torch.cuda.green_contexts
    import torch.distributed as dist

    gpu, cuda = Gpu(), torch.cuda
    gpus.append(gpu)
    count = int(os.environ.get("DOUBLE_GPUS", "1"))
    for name, fake in CALLS.items():
        setattr(cuda, name, fitting(getattr(cuda, name), functools.partial(fake, gpu, count)))
    cuda.Stream = fitting(cuda.Stream.__new__, lambda *_, **__: Stream(gpu), type)
    cuda.Event = fitting(
        cuda.Event.__new__, lambda _, enable_timing=False: Event(gpu, enable_timing), type
    )
    cuda.stream = fitting(cuda.stream, functools.partial(on, gpu))
    cuda.nccl.version = lambda: (2, 28, 9)
    green = cuda.green_contexts
    create = fitting(green.GreenContext.create, functools.partial(part, gpu))
    green.SUPPORTED, green.GreenContext = True, types.SimpleNamespace(create=create)
    dist.is_nccl_available = lambda: True
    dist.init_process_group = fitting(
        dist.init_process_group, functools.partial(join, gpu, count, dist.init_process_group)
    )
    measuring = alone()
    if under_load():
        time.sleep = functools.partial(sleep, gpu)
        for fake in gpu_load.collectives(gpu):
            setattr(dist, fake.__name__, fitting(getattr(dist, fake.__name__), fake))
    for mode in modes(torch, gpu, measuring):
        mode.__enter__()


def fitting(real, fake, *first):
    """The fake function, for calls that the real one would take."""
    signature = inspect.signature(real)

    @functools.wraps(real)
    def call(*args, **kwargs):
        signature.bind(*first, *args, **kwargs)
        return fake(*first, *args, **kwargs)

    return call


def tasks():
    """What this worker is to do."""
    job = Path(sys.argv[1] if len(sys.argv) > 1 else "") / "job.json"
    return json.loads(job.read_text())["tasks"] if job.is_file() else []


def under_load():
    """Whether this is a worker that measures under load."""
    return any(task["task"] == "load_run" for task in tasks())


def alone():
    """Whether this is a worker that only measures."""
    return under_load() or any(
        task["task"] == "streams_run" or "gemm" in task.get("parts", []) for task in tasks()
    )


def sleep(gpu, seconds):
    gpu.host += seconds


def synchronize(gpu, count, device=None):
    gpu.host = max([gpu.host, *(stream.ready for stream in gpu.streams)])


def set_device(gpu, count, device):
    assert int(str(device).removeprefix("cuda:")) < count
    gpu.device = int(str(device).removeprefix("cuda:"))


def properties(gpu, count, device=None):
    return types.SimpleNamespace(
        name="Double", total_memory=1 << 37, multi_processor_count=SMS, uuid=UUID
    )


CALLS = {
    "is_available": lambda gpu, count: count > 0,
    "device_count": lambda gpu, count: count,
    "get_device_name": lambda gpu, count, device=None: "Double",
    "get_device_properties": properties,
    "set_device": set_device,
    "current_device": lambda gpu, count: 0,
    "current_stream": lambda gpu, count, device=None: gpu.stack[-1],
    "synchronize": synchronize,
    "_sleep": lambda gpu, count, cycles: gpu.run(cycles / CLOCK, None, "wait"),
    "empty_cache": lambda gpu, count: None,
    "memory_allocated": lambda gpu, count, device=None: BEFORE,
    "max_memory_allocated": lambda gpu, count, device=None: PEAK_BYTES,
    "get_rng_state": lambda gpu, count, device="cuda": None,
    "set_rng_state": lambda gpu, count, state, device="cuda": None,
    "reset_peak_memory_stats": lambda gpu, count, device=None: None,
}


@contextlib.contextmanager
def on(gpu, stream):
    gpu.stack.append(stream)
    yield
    gpu.stack.pop()


def part(gpu, *, num_sms, device_id):
    """A green context, of which only the stream is there."""
    return types.SimpleNamespace(Stream=lambda: Stream(gpu, num_sms))


def join(gpu, count, real, backend, device_id=None, **how):
    """NCCL's rules, over gloo."""
    if backend == "nccl":
        assert how["world_size"] <= count, "Duplicate GPU detected"
        assert str(device_id) == f"cuda:{gpu.device}", (device_id, gpu.device)
        with Path(os.environ["DOUBLE_LOG"]).open("a") as log:
            log.write(f"nccl {how['world_size']}\n")
        return real("gloo", **how)
    assert device_id is None
    return real(backend, **how)


def modes(torch, gpu, measuring):
    """Where tensors are, and what an op takes."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.flop_counter import flop_registry

    place = ["host"]  # of what an op makes that has no tensors to go by

    class Places(TorchFunctionMode):
        """Tensors lie on the CPU; where they would lie is written on them."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if func is torch.device:
                return func(*args, **kwargs)
            given = [x for x in (*args, *kwargs.values()) if is_device(x)]
            if func is torch.Tensor.data.__set__:
                args[0].place = where(args[1])
            pinned = kwargs.pop("pin_memory", False)
            on_gpu = any(str(x).startswith("cuda") for x in given)
            place.append("pinned" if pinned else "gpu" if on_gpu else "host")
            try:
                out = func(*map(moved, args), **{k: moved(x) for k, x in kwargs.items()})
                if given and isinstance(out, torch.Tensor):
                    out.place = place[-1]
                    out.device_name = str(given[-1])
                return out
            finally:
                place.pop()

    def is_device(x):
        return isinstance(x, torch.device) or (isinstance(x, str) and x.startswith(("cuda", "cpu")))

    def moved(x):
        return torch.device("cpu") if is_device(x) else x

    def where(tensor):
        return getattr(tensor, "place", "host")

    class Times(TorchDispatchMode):
        """Lets time pass on the current stream for every op that moves or computes something."""

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            results = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
            name = func._schema.name.partition("::")[2]
            there = {where(x) for x in tensors if x.dim() or x.numel() > 1}
            if measuring and name not in ("copy_", "_to_copy") and len(there) > 1:
                raise RuntimeError(f"{name}: expected all tensors on one device, found {there}")
            for x in results:
                if not any(x is y for y in tensors):
                    x.place = where(tensors[0]) if tensors else place[-1]
                    x.zero = all(map(is_zero, tensors)) if tensors else name.startswith("zeros")
            if name == "copy_" and peers(*args[:2]):
                gpu.load.transfer(gpu, "peer", args[0].numel() * args[0].element_size())
                return out
            kind = sort(name, func._overloadpacket, tensors)
            length = took(name, func._overloadpacket, args, kwargs or {}, out, tensors, results)
            gpu.run(*length, kind if length[0] else None)
            return out

    def is_zero(tensor):
        return getattr(tensor, "zero", False)

    def peers(one, two):
        names = [getattr(x, "device_name", "") for x in (one, two)]
        return names[0] != names[1] and all(name.startswith("cuda") for name in names)

    def sort(name, packet, tensors):
        """What a kernel is to the clock; None if it is a copy over a link, or no kernel."""
        if "scaled_dot_product" in name:
            return "attention"
        if packet in flop_registry:
            return "zeros" if all(map(is_zero, tensors)) else "tensor"
        return None if name == "copy_" else "memory"

    def took(name, packet, args, kwargs, out, tensors, results):
        if packet in flop_registry or "scaled_dot_product" in name:
            if packet in flop_registry:
                flops = flop_registry[packet](*args, **kwargs, out_val=out)
            else:  # the CPU's flash kernels
                q, k = args[:2] if "backward" not in name else args[1:3]
                flops = 4 * q.numel() * k.shape[2] * (2.5 if "backward" in name else 1)
            sms = gpu.stack[-1].sms
            return flops / PEAK * (SMS / sms if sms else 1.0), None if sms else "sms"
        if name == "copy_":
            to, source = (where(x) == "gpu" for x in args[:2])
            size = args[0].numel() * args[0].element_size()
            if to != source:
                return size / LINK, "h2d" if to else "d2h"
            return size / MEMORY, None
        inputs = {x.untyped_storage()._cdata for x in tensors}
        view = all(x.untyped_storage()._cdata in inputs for x in results)
        writes = name.endswith("_") or "out" in kwargs
        if name.startswith("empty") or (view and not writes):
            return 0.0, None
        moved = {id(x): x for x in (*tensors, *results)}.values()
        return sum(x.numel() * x.element_size() for x in moved) / MEMORY, None

    if not measuring:
        return [Places(), Times()]
    from torch._subclasses.fake_tensor import FakeTensorMode

    return [FakeTensorMode(allow_non_fake_inputs=False), Places(), Times()]
