"""Small models whose parallel training is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traces.record.workers import Here, Task


def blocks(task: Task) -> Any:
    """Blocks of a transformer, one behind another."""
    from torch import nn

    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(
                task["d"], task["heads"], 4 * task["d"], dropout=0.0, batch_first=True,
                norm_first=True,
            )
            for _ in range(task["blocks"])
        )
    )  # fmt: skip


def forward(model: Any, task: Task, here: Here) -> Callable[[], Any]:
    """A forward of the same random input, to a loss."""
    import torch

    x = torch.rand(task["mb"], task["seq"], task["d"]).to(here.device)
    return lambda: model(x).square().mean()


def ring_attention(task: Task, here: Here) -> Callable[[], Any]:
    """Attention of a sequence that the ranks share: each block of keys visits every rank.

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
    """Sends a tensor to the next rank, and its gradient to the one before."""
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
    """One expert per rank; every rank sends each of them an equal share of its tokens."""
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
