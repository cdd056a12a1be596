"""What one rank does to record steps of a parallel training: times, buckets, a profiler's trace."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from traces.record import parallel_models as models
from traces.record.workers import Here, Task

Parts = tuple[Any, Callable[[], Any]]
"""An optimizer (or None) and a function that runs a forward and returns what to differentiate."""


def work(task: Task, here: Here) -> dict[str, Any]:
    """Run the steps of one kind; for each its number, begin, and ends of forward, backward, update.

    Nanoseconds of the host's monotonic clock; ``events`` are DDP's buckets, from when each was
    ready to when it was reduced.
    """
    import torch
    import torch.distributed as dist

    torch.manual_seed(task["seed"])
    events: list[Any] = []
    optimizer, forward = MAKERS[task["mode"]](task, here, events)
    steps = []
    for number in range(task["warm"] + task["steps"]):
        dist.barrier()
        measured = number >= task["warm"]
        if number == task["warm"]:
            events.clear()
        found = _step(optimizer, forward, here)
        if measured:
            steps.append([number - task["warm"], *found])
    trace = _profiled(optimizer, forward, task, here)
    return {
        "rank": here.rank, "steps": steps, "events": events, "trace": trace, "device": here.device
    }  # fmt: skip


def _step(optimizer: Any, forward: Callable[[], Any], here: Here) -> list[int]:
    """Instants of one step."""
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
    if here.device != "cpu":
        import torch

        torch.cuda.synchronize()
    return time.monotonic_ns()


def _profiled(optimizer: Any, forward: Callable[[], Any], task: Task, here: Here) -> str:
    """One more step under torch's profiler; the first one it sees is slower, so a second."""
    import torch.distributed as dist
    from torch import profiler

    path = here.folder / f"{task['mode']}_rank{here.rank}.json.gz"
    plan = profiler.schedule(wait=0, warmup=1, active=1, repeat=1)

    def save(found: Any) -> None:
        found.export_chrome_trace(str(path))

    with profiler.profile(schedule=plan, on_trace_ready=save, record_shapes=True) as found:
        for _ in range(2):
            dist.barrier()
            _step(optimizer, forward, here)
            found.step()
    return path.name


def _ddp(task: Task, here: Here, events: list[Any]) -> Parts:
    """DistributedDataParallel; a hook writes down every bucket."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(models.blocks(task).to(here.device), bucket_cap_mb=4)

    def hook(_: Any, bucket: Any) -> Any:
        ready, index, tensor = time.monotonic_ns(), bucket.index(), bucket.buffer()
        size = tensor.numel() * tensor.element_size()
        work = dist.all_reduce(tensor.div_(here.ranks), async_op=True)

        def done(future: Any) -> Any:
            events.append(["allreduce", index, size, ready, time.monotonic_ns()])
            return future.value()[0]

        return work.get_future().then(done)

    hook.__annotations__.clear()  # torch refuses any others than its own
    model.register_comm_hook(None, hook)
    return torch.optim.AdamW(model.parameters()), models.forward(model, task, here)


def _fsdp2(task: Task, here: Here, _: list[Any]) -> Parts:
    """fully_shard, a unit per block."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(here.device.partition(":")[0], (here.ranks,))
    model = models.blocks(task).to(here.device)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return torch.optim.AdamW(model.parameters()), models.forward(model, task, here)


def _tp(task: Task, here: Here, _: list[Any]) -> Parts:
    """Tensor parallelism of gated MLPs and attentions, as torch splits them."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    from traces.record.fake_model import llama, tensor_parallel

    sizes = {"hidden": task["d"], "head_dim": task["d"] // task["heads"], "ffn": 4 * task["d"],
             "heads": task["heads"], "kv_heads": task["heads"], "layers": task["blocks"],
             "vocab": 512}  # fmt: skip
    model = llama(sizes).to(here.device)
    tensor_parallel(model, init_device_mesh(here.device.partition(":")[0], (here.ranks,)))
    tokens = torch.randint(0, 512, (task["mb"], task["seq"])).to(here.device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    return optimizer, lambda: model(tokens).to_local().square().mean()


def _zero1(task: Task, here: Here, events: list[Any]) -> Parts:
    """DDP with an optimizer whose state is split."""
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    model = DistributedDataParallel(models.blocks(task).to(here.device), bucket_cap_mb=4)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    return optimizer, models.forward(model, task, here)


def _ring(task: Task, here: Here, _: list[Any]) -> Parts:
    """Ring attention: keys and values go round, and their gradients back."""
    return None, models.ring_attention(task, here)


def _moe(task: Task, here: Here, _: list[Any]) -> Parts:
    """Experts: tokens are exchanged, multiplied, and exchanged back."""
    return None, models.experts(task, here)


MAKERS: dict[str, Callable[[Task, Here, list[Any]], Parts]] = {
    "ddp": _ddp,
    "fsdp2": _fsdp2,
    "tp": _tp,
    "zero1": _zero1,
    "ring": _ring,
    "moe": _moe,
}
