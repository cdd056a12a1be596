"""Small models whose parallel training is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traces.record.workers import Here, Task


def blocks(task: Task) -> Any:
    """Return blocks of a GPT, one after another, without embedding and head, with biases.

    Rows of the fused projection are ordered by head, so that a rank of tensor parallelism, which
    has a share of them, has whole heads.
    """
    import torch
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    d, ffn, of_head = task["d"], task["ffn"], task["d"] // task["heads"]

    class Block(nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
        """One layer, normalised before attention and before the MLP."""

        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc1, self.fc2 = nn.Linear(d, ffn), nn.Linear(ffn, d)

        def forward(self, x: Any) -> Any:
            batch, sequence, _ = x.shape
            heads = self.qkv(self.norm1(x)).view(batch, sequence, -1, 3, of_head)
            q, k, v = (one.transpose(1, 2) for one in heads.unbind(3))
            out = scaled_dot_product_attention(q, k, v)
            x = x + self.proj(out.transpose(1, 2).reshape(batch, sequence, -1))
            return x + self.fc2(torch.nn.functional.gelu(self.fc1(self.norm2(x))))

    return nn.Sequential(*(Block() for _ in range(task["blocks"])))


def tensor_parallel(model: Any, mesh: Any) -> None:
    """Split the blocks as Megatron does: two all-reduces of a forward, and two of a backward."""
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    for block in model:
        parallelize_module(
            block,
            mesh,
            {
                "qkv": ColwiseParallel(), "proj": RowwiseParallel(),
                "fc1": ColwiseParallel(), "fc2": RowwiseParallel(),
            },
        )  # fmt: skip


def optimizer(task: Task) -> tuple[Any, dict[str, Any]]:
    """Return the optimizer's class, and the arguments of its call."""
    import torch

    if task["optimizer"] == "SGD":
        return torch.optim.SGD, {"lr": 0.01}
    return torch.optim.AdamW, {"lr": 0.001}


def forward(model: Any, task: Task, here: Here) -> Callable[[], Any]:
    """Return a function that runs a forward of the same random input, to a loss."""
    import torch

    x = torch.rand(task["mb"], task["seq"], task["d"]).to(here.device)
    return lambda: model(x).square().mean()


def ring_attention(task: Task, here: Here) -> Callable[[], Any]:
    """Return attention over a sequence that the ranks share: keys visit every rank.

    Partial results are joined by their logarithms of sums, as in Liu et al. 2023,
    arXiv:2310.01889.
    """
    import torch

    shape = (task["mb"], task["heads"], task["seq"], task["d"] // task["heads"])
    q, k, v = (torch.rand(shape, device=here.device, requires_grad=True) for _ in range(3))
    send = _shift(here)

    def run() -> Any:
        kv, parts = torch.stack((k, v)), []
        for hop in range(here.ranks):
            score = q @ kv[0].transpose(-1, -2) / shape[-1] ** 0.5
            parts.append((torch.logsumexp(score, -1, keepdim=True), score.softmax(-1) @ kv[1]))
            if hop < here.ranks - 1:
                kv = send.apply(kv)
        logs = torch.cat([log for log, _ in parts], -1)
        weights = logs.softmax(-1).unbind(-1)
        joined = torch.stack(
            [w.unsqueeze(-1) * out for w, (_, out) in zip(weights, parts, strict=True)]
        ).sum(0)
        return joined.square().mean()

    return run


def _shift(here: Here) -> Any:
    """Return a function that sends a tensor to the next rank, and its gradient back."""
    import torch
    import torch.distributed as dist

    after, before = (here.rank + 1) % here.ranks, (here.rank - 1) % here.ranks

    def exchange(tensor: Any, to: int, source: int) -> Any:
        sent, received = tensor.contiguous(), torch.empty_like(tensor)
        ops = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return received

    class Shift(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to the type checker
        """One hop of the ring."""

        @staticmethod
        def forward(_: Any, tensor: Any) -> Any:
            return exchange(tensor, after, before)

        @staticmethod
        def backward(_: Any, gradient: Any) -> Any:
            return exchange(gradient, before, after)

    return Shift


def experts(task: Task, here: Here) -> Callable[[], Any]:
    """Return a step of one expert per rank; every rank sends each an equal share of its tokens."""
    import torch
    from torch.distributed._functional_collectives import all_to_all_single_autograd

    width = task["d"]
    tokens = task["mb"] * task["seq"] // here.ranks * here.ranks
    x = torch.rand(tokens, width, device=here.device, requires_grad=True)
    expert = torch.nn.Sequential(
        torch.nn.Linear(width, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
    ).to(here.device)
    import torch.distributed as dist

    def run() -> Any:
        sent = all_to_all_single_autograd(x, None, None, dist.group.WORLD)
        back = all_to_all_single_autograd(expert(sent), None, None, dist.group.WORLD)
        return back.square().mean()

    return run
