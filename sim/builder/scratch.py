"""What a layer's backward holds for a moment, and what weight-gradient GEMMs leave behind.

The gradients of activations come and go while what the forward kept goes operator by operator, so
most is held early in a layer's backward, in its MLP. (Attention's gradients are smaller than what
its MLP has given back by then.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sim.graph import Compute
from sim.model.layer import layer
from sim.model.operators import Share
from sim.model.sizes import BYTES, Model


def scratch(model: Model, share: Share, number: int) -> float:
    """Bytes of input gradients at the worst moment of a layer's backward, above what it keeps.

    The gradient of the residual stream, x, is there throughout. At the second linear: its output's
    gradient, gathered under sequence parallelism, and its input's, f. At the activation: gradients
    of its output, f, and of its input, f or 2 f, when the linear's kept input, f, is gone.
    """
    if model.resnet:
        return 0.0
    width, x = (2 if model.gated else 1), share.residual
    if model.routed(number):
        rows = sum(share.routed)
        before = float(rows * share.hidden * share.element)
        inner = float(rows * share.expert_ffn * share.element)
    else:
        before = share.whole_residual if share.tokens < share.rows else 0.0
        inner = float(share.rows * share.ffn * share.element)
    return x + max(before + inner, width * inner)


def placeholders(model: Model, share: Share, layers: Iterable[int]) -> float:
    """Bytes that Transformer Engine keeps for good where GEMMs add to main gradients.

    Autograd wants a gradient of every weight all the same, and gets an empty tensor, of which one
    is cached per shape and dtype (``get_dummy_wgrad``, pytorch/module/base.py). Routers are plain
    linears.
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
    """Bytes of the buffer that Megatron-LM keeps for inputs gathered under sequence parallelism and
    for unfused attention's scores (``GlobalMemoryBuffer``, core/utils.py): the larger of them."""
    gathered = share.whole_residual if share.tokens < share.rows else 0.0
    square = share.batch * share.heads * share.sequence**2 * share.element
    return max(gathered, float(square if model.attention == "unfused" else 0))


def matrices(work: Compute) -> Iterator[tuple[int, int]]:
    """Rows and columns of what a GEMM, or each of a grouped one's runs, makes."""
    return zip(work.shape[1::4], work.shape[2::4], strict=True)
