"""Pipeline schedules: the order in which each rank runs its share of the microbatches.

A schedule is a function of the pipeline's shape that returns a :data:`Plan`, one list of steps per
pipeline rank. It knows nothing of time, hardware or tensors, so the same plan can be simulated,
drawn, or compared with the order that torch itself runs.

Each file here is one schedule and defines a function of the file's own name. Adding a schedule is
adding a file: ``load`` finds it and the schedule tests check it. A file may also define ``check``,
with the same arguments, which refuses shapes that the schedule cannot run. It may say what the
schedule costs: ``bubble(ranks, microbatches, chunks, F, I, W)`` in seconds, and
``peak_activations(ranks, microbatches, chunks)``, a list with the activations, in those of one
stage, that each rank holds at most. It sets ``STAGES_PER_RANK`` where that is not 1,
``ASYNCHRONOUS`` where the pipeline is never flushed, and ``P2P``, how the runtime that it comes
from sends its messages. A file whose function of that name does not
take ``ranks`` and ``microbatches`` first, or that has none, is no schedule but helps others.

Instead of a name, users may give the path of such a file elsewhere, ``./mine.py``. It is run, and
what its function returns is checked.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from contextlib import nullcontext
from types import ModuleType
from typing import Any, NamedTuple

from schedules.input_error import InputError
from schedules.user_code import function as outside
from schedules.user_code import is_path, said
from schedules.user_code import module as outside_module

MOST_RANKS = 10_000
MOST_STEPS = 5_000_000
"""The largest product of ranks, microbatches and chunks of a schedule."""


class Step(NamedTuple):
    """One stage's work on one microbatch.

    ``kind`` is a letter, as in ``torch.distributed.pipelining``: F forward, B whole backward,
    I backward for inputs only, W backward for weights only; B is I and W at once. A stage is one
    model chunk: with v chunks on each of p ranks there are p·v stages.

    >>> str(Step(2, "F", 0))
    '2F0'
    """

    stage: int
    kind: str
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class Pair(NamedTuple):
    """A forward and a whole backward that overlap, of different microbatches.

    >>> str(Pair(Step(0, "F", 7), Step(7, "B", 3)))
    '(0F7;7B3)OVERLAP_F_B'
    """

    forward: Step
    backward: Step

    def __str__(self) -> str:
        return f"({self.forward};{self.backward})OVERLAP_F_B"


Plan = list[list[Step | Pair]]
"""plan[rank] is the order in which that pipeline rank runs its steps."""


def members(item: Step | Pair) -> tuple[Step, ...]:
    """Return the steps of one item of a plan: itself, or both of a pair, the forward first.

    >>> members(Step(2, "F", 0))
    (Step(stage=2, kind='F', microbatch=0),)
    """
    return (item.forward, item.backward) if isinstance(item, Pair) else (item,)


def flat(plan: Plan) -> list[list[Step]]:
    """Return the steps of each rank in order, with each pair as two steps, the forward first.

    >>> flat([[Pair(Step(0, "F", 7), Step(7, "B", 3))]]) == [[Step(0, "F", 7), Step(7, "B", 3)]]
    True
    """
    return [
        [step for item in items for step in members(item)]
        if Pair in set(map(type, items))
        else [step for step in items if isinstance(step, Step)]
        for items in plan
    ]


def names() -> list[str]:
    """List the schedules there are: one per file in this folder that defines one.

    ``from_csv`` is not among them, since it makes a plan from a file and not from a shape.
    """
    return sorted(filter(_is_schedule, _files()))


def _files() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]


def _is_schedule(name: str) -> bool:
    """Return whether the module's function of its own name makes a plan from a shape."""
    own = _own(name)
    return callable(own) and [*inspect.signature(own).parameters][:2] == ["ranks", "microbatches"]


def _own(name: str) -> Any:
    """Return what a file of this folder defines under the file's name, or None."""
    return getattr(importlib.import_module(f"schedules.{name}"), name, None)


def load(name: str) -> Callable[..., Plan]:
    """Return the schedule of that name: a function of (ranks, microbatches, ...).

    Raises InputError when there is no schedule of that name (the message lists those there are), or
    when the file named is no schedule.
    """
    if is_path(name):
        return _checked(name)
    function: Callable[..., Plan] = getattr(_module(name), name)
    return function


def _checked(path: str) -> Callable[..., Plan]:
    """Return a schedule from outside of this package, whose plans are checked when made."""
    from schedules.legality.shape import require_plan

    own = outside(path, "the schedule")

    @functools.wraps(own)
    def plan(ranks: int, microbatches: int, **given: Any) -> Plan:
        stages = ranks * stages_per_rank(path, given.get("chunks"))
        return require_plan(own(ranks, microbatches, **given), path, ranks, stages, microbatches)

    return plan


def options(name: str) -> tuple[str, ...]:
    """Return what the schedule takes besides ranks and microbatches.

    >>> options("gpipe"), options("interleaved_1f1b")
    ((), ('chunks', 'group', 'overlap'))
    """
    return tuple(inspect.signature(load(name)).parameters)[2:]


def stages_per_rank(name: str, chunks: int | None = None) -> int:
    """Return how many stages each rank runs: ``chunks`` (2 unless given) where it takes them.

    >>> [stages_per_rank(name) for name in ("gpipe", "interleaved_1f1b", "zb_v")]
    [1, 2, 2]
    """
    if "chunks" in options(name):
        return chunks or 2
    return int(getattr(_module(name), "STAGES_PER_RANK", 1))


def takes_times(name: str) -> bool:
    """Return whether the order is searched for given times of F, I, W and p2p, in seconds."""
    return "p2p" in options(name)


def orders(name: str) -> Callable[..., list[Plan]] | None:
    """Return the function that lists the orders among which a searched schedule chooses, if any.

    Its arguments are ranks, microbatches, the times (F, I, W, p2p), the objective and the policy;
    see :mod:`schedules.search.choice`. The best order comes first.

    >>> orders("gpipe") is None, len(orders("zb_1p")(2, 3, (5, 4, 3, 0), "span", "pair"))
    (True, 2)
    """
    return None if is_path(name) else getattr(_module(name), "orders", None)


def asynchronous(name: str) -> bool:
    """Return whether the pipeline is never flushed: each rank updates its weights when it can.

    >>> asynchronous("one_f_one_b"), asynchronous("pipedream")
    (False, True)
    """
    return bool(getattr(_module(name), "ASYNCHRONOUS", False))


def p2p(name: str) -> str:
    """Return how the runtime that a schedule comes from sends messages, as a recipe's p2p says it.

    A file of your own sends as torch's runtime, which runs any order, unless it sets ``P2P``.

    >>> p2p("one_f_one_b"), p2p("zb_h1")
    ('batched', 'pair')
    """
    from schedules.legality import POLICIES

    found = getattr(_module(name), "P2P", "pair")
    if found not in POLICIES:
        raise InputError(
            f"{name}: P2P = {found!r} must be {', '.join(POLICIES[:-1])} or {POLICIES[-1]}"
        )
    return str(found)


def staleness(name: str, ranks: int, batch: int | None = None) -> list[int]:
    """Return, per rank, how many updates old its weights are; 0 where pipelines are flushed.

    >>> staleness("gpipe", 4), staleness("pipedream", 4)
    ([0, 0, 0, 0], [3, 2, 1, 0])
    """
    own: Callable[..., list[int]] | None = getattr(_module(name), "staleness", None)
    return own(ranks, batch) if own else [0] * ranks


def check(name: str, ranks: int, microbatches: int, **given: float | str | None) -> None:
    """Raise InputError for a shape that the schedule cannot run."""
    for what, value in {"ranks": ranks, "microbatches": microbatches, **given}.items():
        if not isinstance(value, bool | str | None) and value < 1:
            raise InputError(f"{what} = {value} must be at least 1")
        if what in given and value is not None and what not in options(name):
            raise InputError(f"the schedule {name} has no {what}; leave it out")
    if ranks > MOST_RANKS:
        raise InputError(f"ranks = {ranks:,} must be at most {MOST_RANKS:,}")
    chunks = stages_per_rank(name, int(given.get("chunks") or 0) or None)
    if ranks * microbatches * chunks > MOST_STEPS:
        raise InputError(
            f"ranks x microbatches x chunks = {ranks} x {microbatches} x {chunks} must be "
            f"at most {MOST_STEPS:,}"
        )
    own: Callable[..., None] | None = getattr(_module(name), "check", None)
    if own:
        with said(name) if is_path(name) else nullcontext():
            own(ranks, microbatches, **given)


def stage_rank(plan: Plan) -> dict[int, int]:
    """Return which rank runs each stage.

    >>> stage_rank(load("interleaved_1f1b")(2, 2))
    {0: 0, 1: 1, 2: 0, 3: 1}

    Raises InputError when two ranks run the same stage.
    """
    owner: dict[int, int] = {}
    for rank, steps in enumerate(flat(plan)):
        for stage in sorted({step.stage for step in steps}):
            if owner.setdefault(stage, rank) != rank:
                raise InputError(f"stage {stage} is run by rank {owner[stage]} and by rank {rank}")
    return dict(sorted(owner.items()))


def require_legal(plan: Plan, policy: str = "direction", pair: str = "serial") -> None:
    """Raise InputError for a plan that cannot run.

    Each stage runs each microbatch once, forward and backward (B, or I and then W), on one rank;
    what a step needs is run before it; and no rank waits for ever when ranks exchange messages by
    ``policy`` (``direction``, ``pair`` or ``batched``) and run overlapped pairs as ``pair`` says:
    ``serial``, one member after the other, or ``fused``.

    >>> require_legal([[Step(0, "F", 0)]])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    schedules.input_error.InputError: rank 0, position 0: 0F0 has no backward; 0B0, or...
    """
    from schedules.legality import check_plan

    check_plan(plan, policy, pair)


def _module(name: str) -> ModuleType:
    if is_path(name):
        return outside_module(name, "the schedule")
    return _shipped(name)


@functools.cache  # a schedule that is found stays; a name that is none is looked up again
def _shipped(name: str) -> ModuleType:
    if name == "from_csv" or (name in _files() and _is_schedule(name)):
        return importlib.import_module(f"schedules.{name}")
    raise InputError(unknown(name, "or a file of your own, ./NAME.py"))


def unknown(name: str, others: str) -> str:
    """Return a sentence: no schedule has this name, which one is near, and which there are.

    ``others`` ends the list of them. Of a file of this folder that is no schedule, it says why.

    >>> unknown("1F1B", "or all")[:56]
    "no schedule '1F1B'; did you mean one_f_one_b? There are "
    """
    if name in _files() and callable(_own(name)):
        return (
            f"schedules/{name}.py is no schedule: the first two parameters of {name} must be ranks "
            "and microbatches"
        )
    spoken = {_spoken(known): known for known in names()}  # 1F1B is one_f_one_b
    near = difflib.get_close_matches(_spoken(name[:100]), spoken, 1)
    hint = f"did you mean {spoken[near[0]]}? There" if near else "there"
    return f"no schedule {name!r}; {hint} are {', '.join(names())}, {others}"


def _spoken(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower().replace("1", "one")))
