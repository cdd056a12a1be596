"""Measures what SimPy itself can do: a bare replay of so many ops, to which the engine is compared.

There is one Timeout with one callback per op, and a counter of the needs that are not met yet.
There are no streams, no groups and no sharing, and no times are kept.
"""

from __future__ import annotations

from typing import Any

import simpy


def replay(ops: int, streams: int = 64) -> int:
    """Run ``ops`` ops on ``streams`` chains, each op waiting for the one before; return events."""
    env = simpy.Environment()
    missing = [1] * ops
    events = 0

    def ended(event: Any) -> None:
        nonlocal events
        events += 1
        following = event._value + streams
        if following < ops:
            missing[following] -= 1
            if not missing[following]:
                start(following)

    def start(i: int) -> None:
        timeout = simpy.Timeout(env, 1.0 + (i & 7), i)
        assert timeout.callbacks is not None
        timeout.callbacks.append(ended)

    for i in range(min(streams, ops)):
        start(i)
    env.run()
    return events
