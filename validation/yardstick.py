"""What SimPy itself can do: a bare replay of so many ops, the measure of the engine's speed.

One Timeout with one callback per op and a counter of the needs that are not met yet; no streams, no
groups, no sharing, no times kept.
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
