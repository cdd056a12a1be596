"""What a residual network of bottleneck blocks is: its convolutions, parameters and FLOPs.

He et al. 2015 (arXiv:1512.03385), Table 1: a stem, groups of blocks, a mean over the image and one
linear. Each group has twice the channels and half the resolution of the one before. A block's
stride is in its 3 x 3 convolution (version 1.5, as in torchvision), not in the 1 x 1 before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from schedules.input_error import InputError

STEM, EXPANSION, COLOURS = 64, 4, 3
KEYS = ("name", "blocks", "image", "classes", "norm", "layers")
"""The keys that a recipe's model may have if it is a residual network."""
NORMS = ("batch", "sync_batch")


class Conv(NamedTuple):
    """A convolution without bias and the batch norm after it; ``size`` is that of the output."""

    name: str
    inputs: int  # channels
    outputs: int
    kernel: int
    size: int  # rows and columns, which are equal
    stride: int = 1

    @property
    def parameters(self) -> int:
        """Number of parameters: the weights, and the norm's scale and shift."""
        return self.outputs * self.inputs * self.kernel**2 + 2 * self.outputs

    @property
    def flops(self) -> int:
        """FLOPs of one image's forward; input gradient and weight gradient have as many each."""
        return 2 * self.size**2 * self.outputs * self.inputs * self.kernel**2


class Resnet(NamedTuple):
    """The number of bottleneck blocks in each group, rows of the square image, and classes."""

    blocks: tuple[int, ...]
    image: int
    classes: int

    @property
    def layers(self) -> int:
        """Number of layers: the stem and all blocks."""
        return 1 + sum(self.blocks)

    @property
    def features(self) -> int:
        """Channels of the last block.

        >>> Resnet((3, 4, 6, 3), 224, 1000).features
        2048
        """
        return STEM * EXPANSION << (len(self.blocks) - 1)

    @property
    def last_size(self) -> int:
        """Rows of the last block's output."""
        return self.image // reduction(self.blocks)

    def convolutions(self, layer: int) -> tuple[Conv, ...]:
        """Return the convolutions of the stem (layer 0) or of a block, in forward order.

        >>> [c.name for c in Resnet((3, 4, 6, 3), 224, 1000).convolutions(1)]
        ['conv1', 'conv2', 'conv3', 'projection']
        """
        if layer == 0:
            return (Conv("stem", COLOURS, STEM, 7, self.image // 2, 2),)
        group = next(g for g in range(len(self.blocks)) if layer <= sum(self.blocks[: g + 1]))
        first = layer == 1 + sum(self.blocks[:group])
        return _bottleneck(STEM * 2**group, self.image // (4 * 2**group), group, first)


def _bottleneck(width: int, size: int, group: int, first: bool) -> tuple[Conv, ...]:
    """Return 1 x 1, 3 x 3 and 1 x 1; a group's first block also projects its input for the sum."""
    out, stride = EXPANSION * width, 2 if first and group else 1
    inputs = out if not first else out // 2 if group else STEM
    chain = (
        Conv("conv1", inputs, width, 1, size * stride),
        Conv("conv2", width, width, 3, size, stride),
        Conv("conv3", width, out, 1, size),
    )
    return (*chain, Conv("projection", inputs, out, 1, size, stride)) if first else chain


def reduction(blocks: tuple[int, ...]) -> int:
    """Return how many rows of the image become one row of the last block's output."""
    return 2 << len(blocks)


def layer_parameters(net: Resnet, layer: int) -> int:
    """Return the number of parameters of the stem or of a block."""
    return sum(conv.parameters for conv in net.convolutions(layer))


def head_parameters(net: Resnet) -> int:
    """Return the number of parameters of the linear: matrix and bias."""
    return (net.features + 1) * net.classes


def forward_flops(net: Resnet) -> int:
    """Return the forward FLOPs of one image: convolutions and the linear."""
    each = (conv.flops for layer in range(net.layers) for conv in net.convolutions(layer))
    return sum(each) + 2 * net.features * net.classes


def step_flops(net: Resnet) -> int:
    """Return the FLOPs of one image, forward and backward; the image needs no gradient."""
    return 3 * forward_flops(net) - net.convolutions(0)[0].flops


def complete(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return all numbers of a residual network from those that a recipe gives.

    Raises InputError for a key that no residual network has, or a number that does not fit.

    >>> complete({"blocks": (2, 2), "image": 64})["layers"]
    5
    """
    other = [key for key in given if key not in (*KEYS, "preset")]
    if other:
        raise InputError(
            f"model.{other[0]} is not a key of a model with model.blocks, which has blocks, image, "
            "classes and norm; leave it out"
        )
    full = {"name": "resnet", "image": 224, "classes": 1000, "norm": "batch", **given}
    net = Resnet(tuple(full["blocks"]), full["image"], full["classes"])
    _check(net, full)
    return {**full, "blocks": net.blocks, "layers": net.layers}


def _check(net: Resnet, full: Mapping[str, Any]) -> None:
    if full["norm"] not in NORMS:
        raise InputError(
            f'model.norm = "{full["norm"]}" is not simulated with model.blocks; it must be "batch" '
            'or "sync_batch"'
        )
    if net.image % reduction(net.blocks):
        raise InputError(
            f"model.image = {net.image} is not a multiple of {reduction(net.blocks)}, by which "
            f"{len(net.blocks)} groups of blocks reduce it"
        )
    if full.get("layers", net.layers) != net.layers:
        raise InputError(
            f"model.layers = {full['layers']} is not {net.layers}, the stem and all of "
            "model.blocks; leave it out"
        )


def refuse_without_blocks(given: Mapping[str, Any]) -> None:
    """Raise InputError for a key that only a residual network has, in any other model."""
    for key in ("image", "classes"):
        if key in given:
            raise InputError(f"model.{key} needs model.blocks, or preset resnet-50")
    if given.get("norm") in NORMS:
        raise InputError(
            f'model.norm = "{given["norm"]}" needs model.blocks, or preset resnet-50; '
            'a transformer has "layer" or "rms"'
        )
