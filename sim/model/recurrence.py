"""What layers with a state instead of keys have in common: linears, a short convolution, a scan.

The scan runs in chunks of the sequence: inside a chunk tokens meet as in attention, by products of
matrices, and a state of ``state`` x ``head_dim`` per head is handed from chunk to chunk. Kernels
are those in Triton of mamba_ssm and flash-linear-attention, each a few products per chunk and head.
The backward makes some results again, and has two products for each of the forward. Products are
priced as grouped ones, the rest by bytes, as other elementwise kernels.
"""

from __future__ import annotations

import math
from typing import ClassVar, NamedTuple

from schedules.input_error import InputError
from sim.graph import Compute
from sim.model.operators import Launch, Operator, Share, gemm, linear, memory
from sim.model.part import Part
from sim.model.sizes import Parameters, Recurrence

FP32 = 4  # bytes of an element of a state on its way between chunks


class Products(NamedTuple):
    """One kernel of the scan: its products in one chunk, and whether the backward repeats it."""

    name: str
    runs: tuple[tuple[int, int, int, int], ...]  # batch, m, n, k
    again: bool = False

    @property
    def flops(self) -> int:
        """FLOPs of one chunk."""
        return sum(2 * math.prod(run) for run in self.runs)

    def gradients(self) -> Products:
        """Return the products of the gradients of both factors."""
        turned = [((b, m, k, n), (b, k, n, m)) for b, m, n, k in self.runs]
        return Products(f"{self.name}_backward", tuple(run for both in turned for run in both))


class Recurrent(Part):
    """A layer with a chunked scan, which tensor parallelism splits."""

    shares: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[str] = "recurrence"
    split: ClassVar[tuple[str, ...]] = ("heads", "groups")
    """The sizes that tensor parallelism divides."""

    def of(self, degree: int = 1) -> Recurrence:
        """Return the sizes on one of so many ranks."""
        assert self.model.recurrence
        sizes = self.model.recurrence._asdict()
        for what in self.split:
            if sizes[what] % degree:
                raise InputError(
                    f"model.recurrence.{what} = {sizes[what]} cannot be split evenly by "
                    f"tp = {degree}"
                )
            sizes[what] //= degree
        return Recurrence(**sizes)

    def columns(self, r: Recurrence) -> int:
        """Return the columns of the linear into the layer."""
        raise NotImplementedError

    def channels(self, r: Recurrence) -> int:
        """Return the channels that the convolution mixes over time."""
        raise NotImplementedError

    def vectors(self, r: Recurrence) -> int:
        """Return the parameters beside matrices and norms that one rank holds."""
        raise NotImplementedError

    def norms(self, r: Recurrence) -> tuple[int, int]:
        """Return the scales of the gated norm: those that are split, and those that are not."""
        raise NotImplementedError

    def products(self, r: Recurrence, chunk: int) -> tuple[Products, ...]:
        """Return the kernels of products for one chunk of so many tokens."""
        raise NotImplementedError

    def kept(self, r: Recurrence, element: int) -> float:
        """Return the bytes per token that the scan keeps beside what the convolution keeps."""
        raise NotImplementedError

    def inner(self, share: Share) -> tuple[Operator, ...]:
        """Return linear, convolution, what mixes tokens, and projection."""
        r = self.of(self.model.heads // share.heads)
        x = float(share.rows * self.channels(r) * share.element)
        return (
            linear(share, "mixer", share.hidden, self.columns(r), "column"),
            passes(share, "conv1d", "conv1d", (2, 5), x, saved=x),
            *self.mixed(share, r),
            linear(share, "projection", r.heads * r.head_dim, share.hidden, "row"),
        )

    def mixed(self, share: Share, r: Recurrence) -> tuple[Operator, ...]:
        """Return what comes between convolution and projection: the scan and a gated norm."""
        out = float(share.rows * r.heads * r.head_dim * share.element)
        return self._scan(share, r), passes(share, "gated_norm", "", (3, 5), out, saved=out)

    def parameters(self, tp: int, ep: int, etp: int) -> Parameters:
        """Return the parameters of one rank."""
        held, r = super().parameters(tp, ep, etp), self.of(tp)
        split, whole = self.norms(r)
        return held._replace(linear=held.linear + self.vectors(r) + split, norm=held.norm + whole)

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of the linear into the layer and of the projection."""
        r = self.of(tp)
        return self.model.hidden * (self.columns(r) + r.heads * r.head_dim)

    def core(self, batch: int, sequence: int) -> float:
        """Return the FLOPs of the scan's products."""
        r, (chunk, chunks) = self.of(), self._chunks(sequence)
        return float(batch * chunks * sum(of.flops for of in self.products(r, chunk)))

    def _chunks(self, sequence: int) -> tuple[int, int]:
        """Return the tokens of a chunk, and how many there are."""
        chunk = min(self.of().chunk, sequence)
        return chunk, math.ceil(sequence / chunk)

    def _scan(self, share: Share, r: Recurrence) -> Operator:
        chunk, chunks = self._chunks(share.sequence)
        count = share.batch * chunks
        state = float(count * r.heads * r.state * r.head_dim * FP32)
        passed = memory(share, "elementwise", 2 * state)._replace(by="scan")
        back = passed._replace(bytes=3 * state)
        each = self.products(r, chunk)
        forward = [_launch(share, of, count) for of in each]
        again = [launch for of, launch in zip(each, forward, strict=True) if of.again]
        gradients = [_launch(share, of.gradients(), count) for of in reversed(each)]
        passing, returning = Launch("state_passing", passed), Launch("state_backward", back)
        return Operator(
            "scan",
            (*forward, passing),
            (*again, passing, *gradients, returning),
            saved=self.kept(r, share.element) * share.rows,
        )


def _launch(share: Share, of: Products, count: int) -> Launch:
    """Return a kernel that does the products of ``count`` chunks."""
    runs = [gemm(share, m, n, k, batch=count * b) for b, m, n, k in of.runs]
    flops, moved = (math.fsum(getattr(run, what) for run in runs) for what in ("flops", "bytes"))
    shape = tuple(size for run in runs for size in run.shape)
    return Launch(
        of.name, Compute("grouped_gemm", flops, moved, shape, share.product, "chunk_products")
    )


def passes(
    share: Share, name: str, by: str, passes: tuple[int, int], x: float, saved: float
) -> Operator:
    """Return an elementwise operator with so many passes over ``x`` bytes each way."""
    forward, backward = (memory(share, "elementwise", n * x)._replace(by=by) for n in passes)
    return Operator(
        name, (Launch(name, forward),), (Launch(f"{name}_backward", backward),), saved=saved
    )
