"""Records steps of a parallel training on one rank: times, buckets, a profiler's trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from traces.record import parallel_models as models
from traces.record import plan
from traces.record.sweep_time import synchronize
from traces.record.workers import Here, Task

Parts = tuple[Any, Callable[[], Any]]
"""An optimizer (or None), and a function that runs a forward and returns what to differentiate."""


def work(task: Task, here: Here) -> dict[str, Any]:
    """Run the steps of one kind; return number, begin and ends of each step's parts.

    Nanoseconds of the host's monotonic clock; ``events`` are DDP's buckets in timed steps, from
    when each was ready to when it was reduced.
    """
    import torch

    torch.manual_seed(task["seed"])
    events: list[Any] = []
    optimizer, forward = MAKERS[task["mode"]](task, here, events)
    found = plan.steps(task, here, lambda: _step(optimizer, forward, here), events.clear)
    steps, timed = [[number, *instants] for number, instants in enumerate(found)], [*events]
    trace = _profiled(optimizer, forward, task, here)
    return {
        "rank": here.rank, "steps": steps, "events": timed, "trace": trace, "device": here.device
    }  # fmt: skip


def _step(optimizer: Any, forward: Callable[[], Any], here: Here) -> list[int]:
    """Return the instants of one step."""
    instants = [_now(here)]
    loss = forward()
    instants.append(_now(here))
    loss.backward()
    instants.append(_now(here))
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()
    instants.append(_now(here))
    return instants


def _now(here: Here) -> int:
    synchronize(here)
    return time.monotonic_ns()


def _profiled(optimizer: Any, forward: Callable[[], Any], task: Task, here: Here) -> str:
    """Run more steps under torch's profiler; those in which it warms up are in its trace too."""
    import torch.distributed as dist
    from torch import profiler

    path = here.folder / f"{task['mode']}_rank{here.rank}.json.gz"
    active = task["profiled_warm"] + task["profiled"]
    plan = profiler.schedule(wait=0, warmup=1, active=active, repeat=1)

    def save(found: Any) -> None:
        found.export_chrome_trace(str(path))

    with profiler.profile(schedule=plan, on_trace_ready=save, record_shapes=True) as found:
        for _ in range(1 + active):
            dist.barrier()
            _step(optimizer, forward, here)
            found.step()
    return path.name


def _ddp(task: Task, here: Here, _: list[Any]) -> Parts:
    """Return DistributedDataParallel with its own reducer."""
    model = _replicated(task, here)
    of, options = models.optimizer(task)
    return of(model.parameters(), **options), models.forward(model, task, here)


def _replicated(task: Task, here: Here) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    megabytes = task["bucket_bytes"] / (1 << 20)
    return DistributedDataParallel(models.blocks(task).to(here.device), bucket_cap_mb=megabytes)


def _ddp_hook(task: Task, here: Here, events: list[Any]) -> Parts:
    """Return DistributedDataParallel with a hook that writes down every bucket."""
    import torch.distributed as dist

    model = _replicated(task, here)

    def hook(_: Any, bucket: Any) -> Any:
        ready, index, tensor = time.monotonic_ns(), bucket.index(), bucket.buffer()
        size = tensor.numel() * tensor.element_size()
        work = dist.all_reduce(tensor.div_(here.ranks), async_op=True)

        def done(future: Any) -> Any:
            events.append(["allreduce", index, size, ready, time.monotonic_ns()])
            return future.value()[0]

        return work.get_future().then(done)

    hook.__annotations__.clear()  # torch refuses all annotations but its own
    model.register_comm_hook(None, hook)
    of, options = models.optimizer(task)
    return of(model.parameters(), **options), models.forward(model, task, here)


def _fsdp2(task: Task, here: Here, _: list[Any]) -> Parts:
    """Return fully_shard, with a unit per block and one for the whole."""
    from torch.distributed.fsdp import fully_shard

    mesh = _mesh(here)
    model = models.blocks(task).to(here.device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    of, options = models.optimizer(task)
    return of(model.parameters(), **options), models.forward(model, task, here)


def _tp(task: Task, here: Here, _: list[Any]) -> Parts:
    """Return tensor parallelism, in which every rank has some heads and some of the MLP."""
    model = models.blocks(task).to(here.device)
    models.tensor_parallel(model, _mesh(here))
    of, options = models.optimizer(task)
    one_by_one = of(model.parameters(), foreach=False, **options)  # only some of them are split
    return one_by_one, models.forward(model, task, here)


def _mesh(here: Here) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(here.device.partition(":")[0], (here.ranks,))


def _zero1(task: Task, here: Here, _: list[Any]) -> Parts:
    """Return DDP with an optimizer whose state is split."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = _replicated(task, here)
    of, options = models.optimizer(task)
    split = ZeroRedundancyOptimizer(model.parameters(), of, **options)
    return split, models.forward(model, task, here)


def _ring(task: Task, here: Here, _: list[Any]) -> Parts:
    """Return ring attention: keys and values go round, and their gradients back."""
    return None, models.ring_attention(task, here)


def _moe(task: Task, here: Here, _: list[Any]) -> Parts:
    """Return experts: tokens are exchanged, multiplied, and exchanged back."""
    return None, models.experts(task, here)


MAKERS: dict[str, Callable[[Task, Here, list[Any]], Parts]] = {
    "ddp": _ddp,
    "ddp_hook": _ddp_hook,
    "fsdp2": _fsdp2,
    "tp": _tp,
    "zero1": _zero1,
    "ring": _ring,
    "moe": _moe,
}
