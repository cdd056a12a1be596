"""The state of GPUs that kernels and communication share; the counterpart of sim.engine.gpu."""

from __future__ import annotations

from sim.engine.compiled.fields import (
    CHAINS,
    CONTENTION,
    DIRTY,
    DIRTY_LIST,
    FIRST_MOVING,
    GPU_SMS,
    GPU_WIDTH,
    GPUS,
    HBM,
    IS_DIRTY,
    MOVING,
    MOVING_PART,
    MOVING_SHARE,
    MOVING_WIDTH,
    PARTIALS,
    SMS,
    UNSETTLED,
)
from sim.engine.compiled.jit import ahead, inner
from sim.machine.network import Cells, Places


@inner
def at_least(value: float, least: float) -> float:
    """Return ``max(value, least)`` as Python does."""
    return least if least > value else value


@inner
def shares(i: Places, f: Cells, g: int) -> tuple[float, float]:
    """Return the shares of SMs and of memory bandwidth that each kernel on GPU ``g`` has.

    So does :meth:`sim.machine.hardware.Machine.kernels`.
    """
    a = i[GPUS] + g * GPU_WIDTH
    left = max(i[GPU_SMS] - i[a + SMS], 1)
    beside = max(i[a + CHAINS], 1)
    hbm = f[a + HBM]
    x = left / i[GPU_SMS] / beside
    x *= at_least(1.0 - f[CONTENTION] * hbm, 0.01)
    return x, at_least(1.0 - hbm, 0.01) / beside


@inner
def touch(i: Places, g: int) -> None:
    """Note that the state of a GPU changed while kernels run on it."""
    a = i[GPUS] + g * GPU_WIDTH
    if i[a + CHAINS]:
        i[UNSETTLED] = 1
        if not i[a + IS_DIRTY]:
            i[a + IS_DIRTY] = 1
            i[i[DIRTY_LIST] + i[DIRTY]] = g
            i[DIRTY] += 1


@inner
def hold(i: Places, g: int, sms: int) -> None:
    """Let communication hold ``sms`` SMs more of a GPU, or fewer when negative."""
    i[i[GPUS] + g * GPU_WIDTH + SMS] += sms
    touch(i, g)


@inner
def rounded(partials: Cells, n: int) -> float:
    """Return the sum of partial sums, rounded once, half to even."""
    n -= 1
    high, low = partials[n], 0.0
    while n > 0 and low == 0.0:
        n -= 1
        x, y = high, partials[n]
        high = x + y
        low = y - (high - x)
    alike = n > 0 and low != 0.0 and (low > 0.0) == (partials[n - 1] > 0.0)
    if alike and 2.0 * low == (high + 2.0 * low) - high:
        high += 2.0 * low
    return high


@inner
def add(partials: Cells, n: int, x: float) -> int:
    """Add a number to partial sums that do not overlap, and return how many there are then."""
    kept = 0
    for k in range(n):
        y = partials[k]
        if abs(x) < abs(y):
            x, y = y, x
        high = x + y
        low = y - (high - x)
        if low != 0.0:
            partials[kept] = low
            kept += 1
        x = high
    partials[kept] = x
    return kept + 1


@inner
def exact(i: Places, f: Cells, at: int, n: int) -> float:
    """Return the float nearest to the sum, as ``math.fsum`` finds it (Shewchuk's algorithm)."""
    partials = ahead(f, i[PARTIALS])
    count = n - n
    for k in range(n):
        count = add(partials, count, f[at + k * MOVING_WIDTH])
    return rounded(partials, count)


@inner
def total(i: Places, f: Cells, at: int, n: int) -> float:
    """Return what ``math.fsum`` returns for ``n`` numbers of at least 0, of which most are 0."""
    count, one, two = 0, 0.0, 0.0
    for k in range(n):
        value = f[at + k * MOVING_WIDTH]
        if value != 0.0:
            count += 1
            one, two = value, one
    if count <= 2:
        return one + two
    return exact(i, f, at, n)


@inner
def move(i: Places, f: Cells, g: int, part: int, share: float) -> None:
    """Let a part take this share of a GPU's memory bandwidth; 0 takes none."""
    a = i[GPUS] + g * GPU_WIDTH
    first, last = i[a + FIRST_MOVING], i[a + GPU_WIDTH + FIRST_MOVING]
    free = -1
    for k in range(last - 1, first - 1, -1):
        other = i[i[MOVING] + k * MOVING_WIDTH + MOVING_PART]
        if other == part:
            free = k
            break
        if other < 0:
            free = k
    if free >= 0:
        b = i[MOVING] + free * MOVING_WIDTH
        i[b + MOVING_PART] = part if share != 0.0 else -1
        f[b + MOVING_SHARE] = share
    f[a + HBM] = total(i, f, i[MOVING] + first * MOVING_WIDTH + MOVING_SHARE, last - first)
    touch(i, g)
