"""The optimizer in host memory: gradients go there, Adam runs there, updated weights come back.

It follows ZeRO-Offload (Ren et al. 2021, arXiv:2101.06840) and Megatron-Core's hybrid optimizer.
For a share of the parameters the host holds Adam's moments, the fp32 copy and a gradient. A
gradient is copied once it is final, bucket by bucket after its reduction (or, without replicas,
after the backward that makes it). Adam waits for all of them and for their norm, which the GPU
computes. Updated weights are copied back after Adam or, with overlap, bucket by bucket beside it.
Meanwhile the GPU updates the other parameters. What the tail sums itself (tied embeddings, norms
under sequence parallelism) is copied with the rest, before that sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sim.builder.program import Collective, Kernel, Program
from sim.builder.strategies.data import Bucket, DataParallel, buckets
from sim.builder.strategies.draft import ProgramDraft
from sim.builder.template import FROM_HOST, TO_HOST
from sim.graph import Copy, Host
from sim.model.sizes import BYTES, Parameters
from sim.strategies.offload.declare import table

STREAM = "host optimizer"


def unreduced(
    backward: Program, held: Parameters, data: DataParallel, parts: Sequence[Bucket]
) -> list[Bucket]:
    """Return buckets of the parameters whose gradients ``parts`` do not reduce."""
    if not parts:
        return buckets(backward, held, replace(data, degree=2, experts=None))
    left = held.total - sum(bucket.parameters for bucket in parts)
    return [Bucket(left, len(backward) - 1, frozenset())] if left else []


def sent(program: Program, data: DataParallel, left: Sequence[Bucket] = ()) -> Program:
    """Return a program with a copy to the host after each reduction, and after what makes the rest.

    ``left`` are buckets that are not reduced; their positions are those of the program, whose end
    is the last.
    """
    draft, share = ProgramDraft(program), table(data.training).optimizer or 0.0
    split = {"dp": data.optimizer_split, "edp": data.of_experts.optimizer_split}
    split |= {"replicate": 1, "edp_replicate": 1}  # instances sum shards
    for i, item in enumerate(program):
        if isinstance(item, Collective) and item.phase == "O" and item.axis in split:
            copy = _copy("grad_to_host", share * item.bytes / split[item.axis], TO_HOST)
            draft.put(("grad_to_host", i), copy, (i,), after=i)
    for k, bucket in enumerate(left):
        size = share * bucket.parameters * BYTES[data.training.grad_dtype]
        key = ("rest_to_host", k)
        draft.put(key, _copy("grad_to_host", size, TO_HOST), (bucket.after,), after=bucket.after)
    return draft.finish()


def update(parameters: float, adam: int, data: DataParallel, needs: int, at: int) -> list[Kernel]:
    """Return Adam on the host and the copies back, from position ``at`` of a program on.

    ``parameters`` is the number that the host updates, ``adam`` the bytes that each moves;
    ``needs`` is the position of the gradients' norm.
    """
    weights = parameters * BYTES[data.training.dtype]
    pieces = max(1, math.ceil(weights / data.bucket)) if table(data.training).overlap else 1
    out: list[Kernel] = []
    for _ in range(pieces):
        work = Host(adam * parameters / pieces)
        out.append(Kernel("host_adam", work, "O", needs=(needs,), stream=STREAM))
        copy = _copy("weights_from_host", weights / pieces, FROM_HOST)
        out.append(copy._replace(needs=(at + len(out) - 1,)))
    return out


def _copy(name: str, size: float, direction: str) -> Kernel:
    return Kernel(name, Copy(size, direction), "O", stream=direction)
