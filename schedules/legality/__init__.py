"""Checks whether a plan can run; one sentence says what is wrong, with rank, position and step."""

from __future__ import annotations

from itertools import pairwise

from schedules import Plan, Step
from schedules.input_error import InputError
from schedules.legality.places import Chains, Place, chains_of
from schedules.legality.waits import no_deadlock

POLICIES = ("direction", "pair", "batched")
PAIRS = ("serial", "fused")


def check_plan(plan: Plan, policy: str = "direction", pair: str = "serial") -> None:
    """Raise InputError for a plan that cannot run; see :func:`schedules.require_legal`."""
    if policy not in POLICIES:
        raise InputError(f"no policy {policy!r}; there are {', '.join(POLICIES)}")
    if pair not in PAIRS:
        raise InputError(f"no way {pair!r} of running a pair; there are {', '.join(PAIRS)}")
    chains = chains_of(plan)
    _numbered(chains)
    for (stage, m), places in chains.items():
        if not _is_whole(places):
            _explain({kind: Step(stage, kind, m) for kind in "FBIW"}, places)
    _one_rank_each(chains, len(plan))
    _goes_on(plan, chains, policy == "batched", pair == "fused")


def _goes_on(plan: Plan, chains: Chains, batched: bool, fused: bool) -> None:
    """Raise if ranks wait for ever, and say so if only batched exchanges make them wait."""
    try:
        no_deadlock(plan, chains, batched, fused)
    except InputError as error:
        if batched:
            no_deadlock(plan, chains, False, fused)
            raise InputError(f'{error}; p2p = "direction" runs it') from None
        raise


def _numbered(chains: Chains) -> None:
    """Raise unless every stage runs every microbatch and both are numbered from 0."""
    stages, microbatches = ({chain[k] for chain in chains} for k in (0, 1))
    for k, what, numbers in ((0, "stages", stages), (1, "microbatches", microbatches)):
        missing = next(n for n in range(len(numbers) + 1) if n not in numbers)
        if missing < max(numbers):
            chain = next(chain for chain in chains if chain[k] == max(numbers))
            raise InputError(
                f"{_first(chain, chains)}, but no rank runs {'stage' if k == 0 else 'microbatch'} "
                f"{missing}; {what} are numbered from 0 without gaps"
            )
    for stage in sorted(stages):
        for m in sorted(microbatches):
            if (stage, m) not in chains:
                chain = next(chain for chain in chains if chain[0] == stage)
                raise InputError(
                    f"{_first(chain, chains)}, but no rank runs {Step(stage, 'F', m)}; "
                    "every stage runs every microbatch"
                )


def _first(chain: tuple[int, int], chains: Chains) -> str:
    kind, place = next(iter(chains[chain].items()))
    return f"{place}: {Step(chain[0], kind, chain[1])}"


def _is_whole(places: dict[str, Place]) -> bool:
    """Return whether there is one forward, then one backward, whole or in halves, on one rank."""
    ranks = {place.rank for place in places.values()}  # on one rank, places are in running order
    return len(ranks) == 1 and "".join(places) in ("FB", "FIW")


def _explain(steps: dict[str, Step], places: dict[str, Place]) -> None:
    """Raise InputError that says why these steps are not one forward and one backward."""
    kinds = "".join(kind for kind in "FBIW" if kind in places)
    last = steps[kinds[-1]]
    here = f"{places[kinds[-1]]}: {last}"
    backward = f"{steps['B']}, or {steps['I']} and {steps['W']},"
    if "F" not in kinds:
        raise InputError(f"{here} has no forward; {steps['F']} must come before it")
    if kinds == "F":
        raise InputError(f"{here} has no backward; {backward} must follow it")
    if kinds not in ("FB", "FIW"):
        if "B" in kinds:
            raise InputError(
                f"{here} is run beside {steps['B']}, {places['B']}; B is I and W at once"
            )
        raise InputError(f"{here} is half a backward; {backward} must be run")
    for before, after in pairwise(kinds):
        one, other = places[before], places[after]
        if one.rank != other.rank:
            raise InputError(
                f"{other}: {steps[after]} is on another rank than {steps[before]}, {one}"
            )
        if one.position > other.position:
            raise InputError(
                f"{other}: {steps[after]} needs {steps[before]}, which comes later, {one}"
            )


def _one_rank_each(chains: Chains, ranks: int) -> None:
    """Raise if a stage is on two ranks, unless every rank serves two directions.

    Then each rank has its own stage and the opposite one.
    """
    owners: dict[int, dict[int, tuple[int, int]]] = {}
    for chain, places in chains.items():
        owners.setdefault(chain[0], {}).setdefault(places["F"].rank, chain)
    if len(owners) == ranks and all(own.keys() == {s, ranks - 1 - s} for s, own in owners.items()):
        return
    for stage, own in owners.items():
        if len(own) > 1:
            first, second = sorted(own)[:2]
            raise InputError(
                f"{_first(own[second], chains)} is of stage {stage}, which rank {first} runs too, "
                f"as in {_first(own[first], chains)}; a stage is on one rank"
            )
