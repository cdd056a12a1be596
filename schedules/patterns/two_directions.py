"""The order of one rank that serves two directions at once, as DeepSeek's DualPipe runs it.

https://github.com/deepseek-ai/DualPipe, ``dualpipe.py``: eight phases, in each of which a rank
takes the next forward, backward or weight gradient of its direction 0 or 1.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count

from schedules import Pair, Step


def order(
    half: int, place: int, microbatches: int, directions: Sequence[tuple[int, int]]
) -> Iterator[Step | Pair]:
    """Yield the steps of the rank that is ``place`` steps from an end of a pipeline.

    The pipeline has ``half`` such places. ``directions`` has the stage and the first of the
    ``microbatches`` of the rank's direction 0 and of its direction 1.
    """
    forward = [_steps(stage, "F", first) for stage, first in directions]
    backward = [_steps(stage, "B", first) for stage, first in directions]
    later: deque[Step] = deque()  # weight gradients put off

    def split(direction: int) -> Step:
        step = next(backward[direction])
        later.append(step._replace(kind="W"))
        return step._replace(kind="I")

    before = half - place - 1  # places between this one and the middle
    for _ in range(2 * before):
        yield next(forward[0])
    for _ in range(place + 1):
        yield next(forward[0])
        yield next(forward[1])
    for _ in range(before):
        yield split(1)
        yield later.popleft()
        yield next(forward[1])
    for k in range(microbatches - 2 * half + place + 1):
        if k == 0 and before == 0:  # in the middle the bubble is smaller without overlap
            yield next(forward[0])
            yield next(backward[1])
        else:
            yield Pair(next(forward[0]), next(backward[1]))
        yield Pair(next(forward[1]), next(backward[0]))
    for _ in range(before):
        yield next(backward[1])
        yield Pair(next(forward[1]), next(backward[0]))
    for k in range(2 * (place + 1)):
        yield split(1 - k % 2) if k > place else next(backward[1 - k % 2])
    for _ in range(before):
        yield later.popleft()
        yield split(0)
    yield from later


def _steps(stage: int, kind: str, first: int) -> Iterator[Step]:
    """Return the stage's steps of that kind, one microbatch after the other."""
    return (Step(stage, kind, m) for m in count(first))
