"""The largest micro-batch, or the longest context, with which a layout of a job fits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from schedules.input_error import InputError
from sim.engine import DeadlockError
from sim.recipe.recipe import Recipe
from sim.runs.row import row
from sim.runs.run import run
from sim.search import room, tried
from sim.search.choices import divisors
from sim.search.space import Layout, Space, space

KEYS = {"micro_batch": "training.micro_batch", "context": "model.sequence"}
PARTS = 8
"""Between a context that fits and twice as long a one that does not, these parts are tried."""
Values = Mapping[str, object]


class Largest(NamedTuple):
    """The largest value, a layout that fits with it, and the bytes of its fullest GPU."""

    key: str
    value: int
    layout: Layout
    bytes: float
    capacity: float


def largest(
    recipe: str | Path,
    what: str,
    gpus: int | None = None,
    fix: Values | None = None,
    overrides: Values | None = None,
) -> Largest:
    """Find the largest micro_batch, in samples, or context, in tokens, that fits with any layout.

    Nothing is simulated but where memory depends on it, so it says nothing of time. The global
    batch stays, in samples. Values go up until no layout fits: micro-batches by the divisors of the
    global batch; contexts by doubling the recipe's, and then by eighths. Raises InputError where
    not even the recipe's context, or one sample, fits.
    """
    if what not in KEYS:
        raise InputError(f"no largest {what!r}; there are {', '.join(KEYS)}")
    given = {k: v if isinstance(v, list) else [v] for k, v in (fix or {}).items()}
    if KEYS[what] in given or KEYS[what] in (overrides or {}):
        raise InputError(f"{KEYS[what]} is what --largest finds; leave it out")
    one = _Sized(Path(recipe), gpus, given, dict(overrides or {}), KEYS[what])
    best = None
    for value in one.values(what):
        found = one.fitting(value)
        if found is None and best is None:
            raise InputError(f"no layout fits with {KEYS[what]} = {value}; more GPUs would do")
        best = found or best
        one.fits = found is not None
    assert best is not None
    return best


class _Sized:
    """The spaces of one recipe by the value of a key."""

    def __init__(
        self, path: Path, gpus: int | None, given: Values, common: Values, key: str
    ) -> None:
        self._path, self._key = path, key
        self._given, self._common = dict(given), dict(common)
        first = space(path, 1, None, common)
        self._gpus, self._base = gpus or first.stated, first.base
        self.fits = True

    def values(self, what: str) -> Iterator[int]:
        """Yield values to try, each after ``fits`` says whether the one before did."""
        if what == "micro_batch":
            for value in divisors(self._base.training.global_batch):
                yield value
                if not self.fits:
                    return
            return
        value = self._base.sequence
        while self.fits:
            yield value
            value *= 2
        low = value // 4
        for part in range(1, PARTS):
            yield low + low * part // PARTS
            if not self.fits:
                return

    def fitting(self, value: int) -> Largest | None:
        """Return a layout that fits with a value, the first that is found."""
        micro = self._key == KEYS["micro_batch"]
        given: dict[str, Any] = {**self._given, **({self._key: [value]} if micro else {})}
        common = {**self._common, **({} if micro else {self._key: value})}
        of = space(self._path, self._gpus, given, common)
        for group in of.groups():
            judged = tried.group(of, group)
            if judged is None or not judged.fits:
                continue
            for one in tried.members(of, group):
                held = _bytes(of, one) if one.fits else None
                if held is not None:
                    capacity = of.cluster(of.recipe(one.layout)).gpu.memory
                    return Largest(self._key, value, one.layout, held, capacity)
        return None


def _bytes(of: Space, judged: tried.Judged) -> float | None:
    """Return the bytes of a layout's fullest GPU, if it fits."""
    recipe = of.recipe(judged.layout)
    cluster = of.cluster(recipe)
    try:
        held = room.exact(recipe, cluster)
        held = _simulated(recipe) if held is None else held
    except (InputError, DeadlockError):
        return None
    return held if held <= cluster.gpu.memory else None


def _simulated(recipe: Recipe) -> float:
    found = run(recipe)
    held = float(row(found)["peak_bytes"])
    return held + room.besides(found.job, found.cluster)
