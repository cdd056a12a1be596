"""What a layer's backward holds for a moment, and what weight-gradient GEMMs leave behind.

The gradients of activations come and go while what the forward kept is freed operator by operator,
so most is held early in a layer's backward, in its MLP. (By the time of attention, its gradients
are smaller than what the MLP has freed.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.graph import Compute
from sim.model.layer import layer
from sim.model.operators import Share
from sim.model.sizes import BYTES, Model, parts


def input_gradients(model: Model, share: Share, number: int) -> float:
    """Return the bytes of input gradients at the peak of a layer's backward, beside what it keeps.

    The gradient of the residual stream is there throughout.
    """
    if model.resnet:
        return 0.0
    return share.residual + max(part.input_gradients(share) for part in parts(model, number))


def placeholders(model: Model, share: Share, layers: Iterable[int]) -> float:
    """Return the bytes that Transformer Engine keeps for good where GEMMs add to main gradients.

    Autograd needs a gradient of every weight all the same, and gets an empty tensor; one is cached
    per shape and dtype (``get_dummy_wgrad``, pytorch/module/base.py). Routers are plain linears.
    """
    shapes = {
        (matrix, launch.work.dtype)
        for number in layers
        for op in layer(model, share, number)
        for launch in op.weight
        if launch.work.shape and op.name != "router"
        for matrix in matrices(launch.work)
    }
    return float(sum(m * n * max(BYTES[dtype], 2) for (m, n), dtype in shapes))


def global_buffer(model: Model, share: Share) -> float:
    """Return the bytes of Megatron-LM's buffer for gathered inputs and unfused scores.

    It is as large as the larger of inputs gathered under sequence parallelism and the scores of
    unfused attention (``GlobalMemoryBuffer``, core/utils.py).
    """
    gathered = share.whole_residual if share.tokens < share.rows else 0.0
    square = share.batch * share.heads * share.sequence**2 * share.element
    return max(gathered, float(square if model.attention == "unfused" else 0))


def matrices(work: Compute) -> Iterator[tuple[int, int]]:
    """Yield rows and columns of the result of a GEMM, or of each run of a grouped GEMM."""
    return zip(work.shape[1::4], work.shape[2::4], strict=True)
