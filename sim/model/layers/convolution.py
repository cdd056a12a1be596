"""Which kernels a residual network runs, what they move and what they keep, as in PyTorch.

Convolutions are implicit matrix products over pixels, channels last. Batch norm, ReLU, pooling and
the residual add are kernels of their own, limited by their bytes, and work in place where
torchvision does. A tensor is kept once: by the convolution that reads it, or by the norm.

Batch norm that several ranks share (``Share.replicas``) is torch's SyncBatchNorm: in the forward
every rank gathers mean, 1 / standard deviation and count from all, 2 C + 1 numbers in fp32 each; in
the backward the ranks sum 2 C numbers. Both collectives are waited for and run on the stream of the
gradients' reduction, as in torch's default group. DDP's broadcast of running statistics is left out
(as with ``broadcast_buffers=False``).
"""

from __future__ import annotations

from functools import cache

from sim.graph import Compute
from sim.model.operators import Launch, Operator, Share, Transfer, linear, memory
from sim.model.part import Part
from sim.model.resnet import Conv, Resnet, layer_parameters
from sim.model.sizes import Parameters

FP32 = 4  # bytes of a statistic or a logit
INDEX = 8  # bytes of the position of a maximum


class Kind(Part):
    """The stem or a block of a residual network, which is not split."""

    @property
    def net(self) -> Resnet:
        """The network."""
        assert self.model.resnet
        return self.model.resnet

    def operators(self, share: Share) -> tuple[Operator, ...]:
        """Return the operators of the stem or the block."""
        return layer(self.net, share, self.number)

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of convolutions and norms."""
        norms = sum(2 * conv.outputs for conv in self.net.convolutions(self.number))
        return Parameters(linear=layer_parameters(self.net, self.number) - norms, norm=norms)

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return 0: no convolution runs in fp8."""
        return 0


@cache
def layer(net: Resnet, share: Share, number: int) -> tuple[Operator, ...]:
    """Return the operators of the stem (number 0) or of a block."""
    convs = net.convolutions(number)
    return _stem(convs[0], share) if number == 0 else _block(convs, share)


@cache
def head(net: Resnet, share: Share) -> tuple[Operator, ...]:
    """Return mean over the image, linear and loss; the mean keeps the last block's output."""
    e, images = share.element, share.batch
    x = float(images * net.last_size**2 * net.features * e)
    out = float(images * net.features * e)
    mean = memory(share, "elementwise", x + out)
    pool = Operator(
        "mean_pool", (Launch("mean_pool", mean),), (Launch("mean_pool_backward", mean),), saved=x
    )
    return pool, linear(share, "head", net.features, net.classes, "", bias=True), _loss(net, share)


def _stem(conv: Conv, share: Share) -> tuple[Operator, ...]:
    before, after = _output(conv, share), _output(conv, share) / 4
    where = after / share.element * INDEX
    pooled = memory(share, "elementwise", before + after + where)
    pool = Operator(
        "max_pool",
        (Launch("max_pool", pooled),),
        (Launch("max_pool_backward", pooled),),
        saved=before + where,
    )
    return (*_normed(conv, share, gradient=False), _relu(conv, share), pool)


def _block(convs: tuple[Conv, ...], share: Share) -> tuple[Operator, ...]:
    """Return convolutions with ReLUs between them, the input's projection, their sum and a ReLU."""
    chain, projection = convs[:3], convs[3:]
    out: list[Operator] = [_branch(chain[0], share)]
    for conv in chain[:-1]:
        out += [*_normed(conv, share), _relu(conv, share)]
    out += _normed(chain[-1], share)
    for conv in projection:
        out += _normed(conv, share, keeps=False)
    return (*out, _added(chain[-1], share), _relu(chain[-1], share))


def _branch(conv: Conv, share: Share) -> Operator:
    """Return the point where a block's input goes two ways: the backward adds two gradients."""
    work = memory(share, "elementwise", 3 * _input(conv, share))
    return Operator("block_input", backward=(Launch("block_input_grad_add", work),))


def _added(conv: Conv, share: Share) -> Operator:
    work = memory(share, "elementwise", 3 * _output(conv, share))
    return Operator("residual", (Launch("residual_add", work),))


def _relu(conv: Conv, share: Share) -> Operator:
    """Return a ReLU in place; what reads its result keeps it."""
    name, x = f"{conv.name}_relu", _output(conv, share)
    return Operator(
        name,
        (Launch(name, memory(share, "elementwise", 2 * x)),),
        (Launch(f"{name}_backward", memory(share, "elementwise", 3 * x)),),
    )


def _normed(
    conv: Conv, share: Share, *, gradient: bool = True, keeps: bool = True
) -> tuple[Operator, Operator]:
    return _convolution(conv, share, gradient, keeps), batch_norm(conv, share)


def _convolution(conv: Conv, share: Share, gradient: bool, keeps: bool) -> Operator:
    """Return a convolution by implicit GEMM, which reads its input once, not once per kernel tap.

    A strided input gradient has as many rows as the input, and 1 / stride² of the taps at each. The
    image needs no gradient. Without ``keeps`` another convolution keeps the input.
    """
    x, y, taps = _input(conv, share), _output(conv, share), conv.kernel**2
    rows, stride = share.batch * conv.size**2, conv.stride**2
    weights = conv.outputs * conv.inputs * taps
    w = float(weights * share.element)

    def product(name: str, moved: float, m: int, n: int, k: int) -> Launch:
        work = Compute("gemm", 2.0 * m * n * k, moved, (1, m, n, k), share.product)
        return Launch(name, work)

    forward = product(conv.name, x + w + y, rows, conv.outputs, conv.inputs * taps)
    back = product(
        f"{conv.name}_dgrad", x + w + y, rows * stride, conv.inputs, conv.outputs * taps // stride
    )
    added = x + y + 2.0 * weights * share.gradient  # to the main gradient, as linears do
    weight = product(f"{conv.name}_wgrad", added, conv.outputs, conv.inputs * taps, rows)
    return Operator(
        conv.name, (forward,), (back,) if gradient else (), (weight,), saved=x if keeps else 0.0
    )


def batch_norm(conv: Conv, share: Share) -> Operator:
    """Return the batch norm after a convolution, over this rank's images or those of all replicas.

    The forward reads the input once for its statistics and once to normalise it; the backward
    likewise reads input and gradient twice. It keeps the input, and mean and 1 / deviation per
    channel.
    """
    name, x = f"{conv.name}_norm", _output(conv, share)
    saved = x + 2 * FP32 * conv.outputs
    if share.replicas > 1:
        return _synchronised(conv, share, name)._replace(saved=saved)
    forward, backward = memory(share, "norm", 3 * x), memory(share, "norm", 5 * x)
    return Operator(
        name, (Launch(name, forward),), (Launch(f"{name}_backward", backward),), saved=saved
    )


def _synchronised(conv: Conv, share: Share, name: str) -> Operator:
    """Return SyncBatchNorm: kernels for statistics and elements around a collective.

    It follows torch/nn/modules/_functions.py.
    """
    x, n, sums = _output(conv, share), share.replicas, f"{name}_grad_all_reduce"
    numbers = float(n * (2 * conv.outputs + 1) * FP32)
    gathered = Transfer(f"{name}_all_gather", "dp", "all_gather", numbers)
    summed = Transfer(sums, "dp", "all_reduce", float(2 * conv.outputs * FP32))

    def kernel(part: str, moved: float) -> Launch:
        return Launch(f"{name}_{part}", memory(share, "norm", moved))

    merged = kernel("merge", numbers + 2 * FP32 * conv.outputs)
    forward = (
        kernel("statistics", x),
        merged._replace(sends=(gathered,), needs=(gathered.name,)),
        kernel("elements", 2 * x),
    )
    elements = kernel("backward_elements", 3 * x)._replace(sends=(summed,), needs=(summed.name,))
    return Operator(name, forward, (kernel("backward_reduce", 2 * x), elements))


def _loss(net: Resnet, share: Share) -> Operator:
    """Return the loss: logits become fp32, then logarithms of the softmax, which are kept."""
    n, e = float(share.batch * net.classes), share.element

    def kernel(name: str, moved: float) -> Launch:
        return Launch(f"loss_{name}", memory(share, "cross_entropy", moved * n))

    forward = kernel("to_fp32", e + FP32), kernel("log_softmax", 2 * FP32)
    backward = kernel("backward", 2 * FP32), kernel("from_fp32", FP32 + e)
    return Operator("loss", forward, backward, saved=FP32 * n)


def _input(conv: Conv, share: Share) -> float:
    """Return the bytes of a convolution's input."""
    return float(share.batch * (conv.size * conv.stride) ** 2 * conv.inputs * share.element)


def _output(conv: Conv, share: Share) -> float:
    """Return the bytes of a convolution's output."""
    return float(share.batch * conv.size**2 * conv.outputs * share.element)
