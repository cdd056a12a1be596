"""One process that trains as one rank of many, with torch's fake process group and without data."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

from schedules.input_error import InputError
from traces.record.fake_model import llama, tensor_parallel
from traces.record.workers import Here, Task

COLLECTIVES = {
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_to_all_single": "all_to_all",
    "alltoall_base_": "all_to_all",
    "broadcast_": "broadcast",
}
"""Operators of ``c10d`` and ``_c10d_functional``, and the collective that each one is."""


def work(task: Task, here: Here) -> dict[str, Any]:
    """Return what a rank issues in one step of FSDP2 × TP: collectives and products, in order."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh

    dp, tp = task["world"] // task["tp"], task["tp"]
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    without_data = FakeTensorMode(allow_non_fake_inputs=True)
    with without_data:
        model = llama(task["model"])
    _parallel(model, task, mesh)  # outside: a mesh looks up this rank in real numbers
    with without_data:
        tokens = torch.zeros((task["micro_batch"], task["sequence"]), dtype=torch.long)
        _step(task, model, tokens, _log())  # which looks for shardings, with whole matrices, once
        log = _log()
        _step(task, model, tokens, log)
    return {"events": log.events, "world": task["world"], "tp": tp}


def _parallel(model: Any, task: Task, mesh: Any) -> None:
    """Split linears over tp and shard parameters over dp, a unit per layer and the rest."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    if task["tp"] > 1:
        tensor_parallel(model, mesh["tp"])
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    how = {"mesh": mesh["dp"], "mp_policy": precision}
    for layer in model.layers:
        fully_shard(layer, **how, reshard_after_forward=task["reshard"])
    fully_shard(model, **how)


def _step(task: Task, model: Any, tokens: Any, log: Any) -> None:
    """Run forwards and backwards of all microbatches, and the norm of the gradients."""
    import torch
    from torch.distributed.tensor.parallel import loss_parallel

    parallel = loss_parallel if task["tp"] > 1 else nullcontext
    with log, parallel():
        for number in range(task["microbatches"]):
            model.set_requires_gradient_sync(number == task["microbatches"] - 1)
            log.phase = "F"
            logits = model(tokens).flatten(0, 1)
            loss = torch.nn.functional.cross_entropy(logits.float(), tokens.flatten())
            log.phase = "B"
            loss.backward()
        log.phase = "O"
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if hasattr(norm, "full_tensor"):
            norm.full_tensor()


def _log() -> Any:
    """Return a mode of dispatch that writes down collectives and matrix products."""
    from torch.distributed.tensor import DTensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.flop_counter import flop_registry

    class Issued(TorchDispatchMode):  # type: ignore[misc]  # torch is Any to the type checker
        """The local operators below tensors that are distributed."""

        def __init__(self) -> None:
            super().__init__()
            self.events: list[dict[str, Any]] = []
            self.phase = ""

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if any(issubclass(kind, DTensor) for kind in types):
                return NotImplemented  # it will dispatch its local ones
            out = func(*args, **(kwargs or {}))
            name = func._schema.name.partition("::")
            if name[0] in ("c10d", "_c10d_functional") and name[2] in COLLECTIVES:
                self._add(name[2], COLLECTIVES[name[2]], _whole(args, out), _ranks(args))
            elif "_scaled_dot_product" in name[2]:
                self.events.append({"op": name[2], "phase": self.phase, **_attention(args, out)})
            elif func._overloadpacket in flop_registry:
                flops = flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out)
                self.events.append({"op": name[2], "phase": self.phase, **_gemm(args, out, flops)})
            return out

        def _add(self, op: str, collective: str, size: int, ranks: list[int]) -> None:
            self.events.append(
                {
                    "op": op,
                    "phase": self.phase,
                    "collective": collective,
                    "bytes": size,
                    "ranks": ranks,
                }
            )

    return Issued()


def _gemm(args: Any, out: Any, flops: float) -> dict[str, Any]:
    """Return a product of two matrices as an event."""
    a, b = _tensors(args)[-2:]
    shape = [1, a.shape[-2], b.shape[-1], a.shape[-1]]
    return {"kind": "gemm", "flops": flops, "shape": shape, **_traffic(args, out)}


def _attention(args: Any, out: Any) -> dict[str, Any]:
    """Return an attention, or its backward, whose first tensor is the output's gradient."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    tensors = [x for x in _tensors(args) if x.dim() == 4]
    backward = len(tensors) > 3
    q, k, v = (x.shape for x in tensors[backward : backward + 3])
    if backward:
        flops = sdpa_backward_flop_count(tensors[0].shape, q, k, v)
    else:
        flops = sdpa_flop_count(q, k, v)
    shape = [q[0], q[1], q[2], k[2], q[3]]
    return {"kind": "attention", "flops": flops, "shape": shape, **_traffic(args, out)}


def _traffic(args: Any, out: Any) -> dict[str, Any]:
    tensors = _tensors((args, out))
    return {
        "bytes": sum(x.numel() * x.element_size() for x in tensors),
        "dtype": {"torch.bfloat16": "bf16", "torch.float32": "fp32"}[str(tensors[0].dtype)],
    }


def _tensors(values: Any) -> list[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _whole(args: Any, out: Any) -> int:
    """Return the bytes of the largest buffer: after a gather, or before a scatter."""
    return max(int(x.numel() * x.element_size()) for x in _tensors((args, out)))


def _ranks(args: Any) -> list[int]:
    """Return the global ranks of the operator's group, given as an object or by name."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _resolve_process_group

    for arg in reversed(args):
        if isinstance(arg, torch.ScriptObject):
            try:
                return list(dist.get_process_group_ranks(dist.ProcessGroup.unbox(arg)))
            except (RuntimeError, TypeError):  # a reduce op
                continue
        if isinstance(arg, dist.ProcessGroup):
            return list(dist.get_process_group_ranks(arg))
        if isinstance(arg, str) and arg not in ("sum", "avg", "max", "min", "product"):
            return list(dist.get_process_group_ranks(_resolve_process_group(arg)))
    raise InputError("a collective has no group")
