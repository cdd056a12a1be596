"""Keeps a process on time: it sleeps to the microsecond, runs when due, dies with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

_PR_SET_PDEATHSIG, _PR_SET_TIMERSLACK = 1, 29  # linux/prctl.h
PRIORITY = 10  # of SCHED_FIFO, 1 to 99: above plain processes, below the kernel's own threads


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, whose id is ``parent``.

    Elsewhere than on Linux a worker still ends with its parent's sockets, though not at once.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)


def precise() -> None:
    """Let this thread, and those that it starts, wake when they asked to, not 50 us later."""
    _prctl(_PR_SET_TIMERSLACK, 1)  # ns


def first() -> bool:
    """Run before all plain processes (SCHED_FIFO) from now on; return whether that is allowed.

    It is for workers that sleep nearly all the time: one that computes would starve gloo's threads.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (AttributeError, OSError):
        return False
    return True


def sleep_until(deadline: int) -> None:
    """Sleep until an instant of ``time.monotonic_ns``; return at once if it has passed."""
    left = deadline - time.monotonic_ns()
    if left > 0:
        time.sleep(left / 1e9)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0)
