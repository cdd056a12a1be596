"""Mamba (Gu and Dao 2023, arXiv:2312.00752, section 3.4), with the norms that Jamba adds.

One linear gives input x and gate z, of ``heads`` x ``head_dim`` channels each. After a causal
convolution, x gives a step of rank hidden / 16, B and C of each group; a norm stands behind each
(Jamba, arXiv:2403.19887, section 6.4), and a second linear gives every channel its step. The
selective scan has a state per channel. It is no product of matrices: its arithmetic counts no
FLOPs, its time is that of its bytes. Under tensor parallelism channels are split, and each rank's
part of step, B and C is summed. mamba_ssm's kernel saves x, step, B, C, z, its output before the
gate, and every ``chunk`` tokens a pair of fp32 numbers per state (ops/selective_scan_interface.py).
"""

from __future__ import annotations

from sim.model.operators import Launch, Operator, Share, linear, memory, norm
from sim.model.recurrence import FP32, Recurrent
from sim.model.sizes import Recurrence


class Kind(Recurrent):
    """A Mamba mixer; step, B and C are whole on every rank."""

    split = ("heads",)

    def columns(self, r: Recurrence) -> int:
        """Return the columns of x and z."""
        return 2 * self.channels(r)

    def channels(self, r: Recurrence) -> int:
        """Return the channels of x."""
        return r.heads * r.head_dim

    def vectors(self, r: Recurrence) -> int:
        """Return convolution with bias, and of each channel a step's bias, D and a row of A."""
        return (r.convolution + 1 + 2 + r.state) * self.channels(r)

    def norms(self, r: Recurrence) -> tuple[int, int]:
        """Return the scales of the norms of step, B and C."""
        return 0, self.narrow(r)

    def matrices(self, tp: int, ep: int, etp: int) -> int:
        """Return the elements of all four linears."""
        r = self.of(tp)
        return super().matrices(tp, ep, etp) + self.channels(r) * (self.narrow(r) + self.rank)

    @property
    def rank(self) -> int:
        """The rank of the step, as mamba_ssm and Jamba have it."""
        return -(-self.model.hidden // 16)

    def narrow(self, r: Recurrence) -> int:
        """Return the columns of step, B and C."""
        return self.rank + 2 * r.groups * r.state

    def core(self, batch: int, sequence: int) -> float:
        """Return no FLOPs."""
        return 0.0

    def mixed(self, share: Share, r: Recurrence) -> tuple[Operator, ...]:
        """Return the linear to step, B and C, their norms, the step's linear, and the scan."""
        x, narrow = self.channels(r), self.narrow(r)
        of_x = float(share.rows * x * share.element)
        added = Launch("x_grad_add", memory(share, "elementwise", 3 * of_x))
        step = linear(share, "step", self.rank, x, "column")
        return (
            Operator("x_input", backward=(added,)),
            linear(share, "x_projection", x, narrow, "row"),
            norm(share, "step_norm", branch=False, width=narrow),
            step._replace(
                saved=float(share.tokens * narrow * share.element),
                buffer=float(share.rows * narrow * share.element),
            ),
            self._selective(share, r),
        )

    def _selective(self, share: Share, r: Recurrence) -> Operator:
        """Return the scan with its gate: x, step and z in, outputs before and after the gate."""
        x, count = self.channels(r), share.batch * self._chunks(share.sequence)[1]
        states = float(count * x * r.state * 2 * FP32)
        of_x, b_c = (float(share.rows * n * share.element) for n in (x, 2 * r.groups * r.state))
        forward = memory(share, "elementwise", 5 * of_x + b_c + states)._replace(
            by="selective_scan"
        )
        backward = forward._replace(bytes=8 * of_x + 2 * b_c + states)
        return Operator(
            "scan",
            (Launch("selective_scan", forward),),
            (Launch("selective_scan_backward", backward),),
            saved=3 * of_x + states,  # step, z and the output before the gate
        )
