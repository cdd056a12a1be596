"""Instants of a step on one clock: the host's or, on a GPU, that of its stream.

All processes of a machine share ``time.monotonic_ns``. On a GPU the host runs ahead, so an instant
is an event on the stream; when the step is over, events become nanoseconds of the host's clock
by one event that the host had waited for.
"""

from __future__ import annotations

import time
from typing import Any


class HostClock:
    """The host's clock."""

    def begin(self) -> None:
        """Prepare for a step; it is called before each one."""

    def now(self) -> Any:
        """Return an instant, to be resolved when the step is over."""
        return time.monotonic_ns()

    def end(self) -> None:
        """Wait until all that has been issued is done."""

    def ns(self, instant: Any) -> int:
        """Return the nanoseconds of the host's monotonic clock at an instant."""
        return int(instant)

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds between two instants, once the second is past."""
        return float((end - begin) / 1e9)


class StreamClock(HostClock):
    """The clock of a GPU's current stream."""

    def begin(self) -> None:
        """Wait for the device, then mark an instant on both clocks."""
        import torch

        torch.cuda.synchronize()
        self.base = torch.cuda.Event(enable_timing=True)
        self.base.record()
        self.base.synchronize()
        self.base_ns = time.monotonic_ns()

    def now(self) -> Any:
        """Return an event on the current stream."""
        import torch

        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def end(self) -> None:
        """Wait for the device."""
        import torch

        torch.cuda.synchronize()

    def ns(self, instant: Any) -> int:
        """Resolve an event; good to about a microsecond."""
        return int(self.base_ns + round(self.base.elapsed_time(instant) * 1e6))

    def seconds(self, begin: Any, end: Any) -> float:
        """Wait for the second of two events; return the device's seconds between them."""
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def clock(device: str) -> HostClock:
    """Return the clock by which a device is measured."""
    return HostClock() if device == "cpu" else StreamClock()
