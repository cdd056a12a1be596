"""What one worker of a search does: judge a group of layouts, judge its members, simulate one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from schedules.input_error import InputError
from sim.engine import DeadlockError
from sim.recipe.recipe import Recipe
from sim.runs.row import with_causes
from sim.runs.run import keeping, run
from sim.search import room
from sim.search.bound import bound, loosest
from sim.search.objective import joules
from sim.search.sketch import Sketch
from sim.search.space import Layout, Space

Row = dict[str, Any]


class Judged(NamedTuple):
    """A layout, or a group of them, before any is simulated."""

    layout: Layout
    bound: float  # seconds
    bytes: float  # that the fullest GPU holds at least
    fits: bool  # unless it holds more than that


def group(space: Space, layout: Layout) -> Judged | None:
    """Judge a group by what all its members have in common; None if none of them is legal."""
    found = (recipe for one in space.members(layout) if (recipe := space.legal(one)))
    some = [next(found, None)] if space.plain else list(found)
    recipes = [recipe for recipe in some if recipe]
    if not recipes:
        return None
    sketches = [Sketch.of(recipe, space.cluster(recipe)) for recipe in recipes]
    held, capacity = min(map(room.always, sketches)), sketches[0].prices.cluster.gpu.memory
    if held > capacity:
        return Judged(layout, 0.0, held, fits=False)
    return Judged(layout, min(map(loosest, sketches)), held, fits=True)


def members(space: Space, layout: Layout) -> Sequence[Judged]:
    """Judge the legal members of a group, each by itself."""
    out = []
    for one in space.members(layout):
        recipe = space.legal(one)
        if recipe is None:
            continue
        try:
            out.append(_judged(space, one, recipe))
        except InputError:  # an order that cannot run
            continue
    return out


def _judged(space: Space, layout: Layout, recipe: Recipe) -> Judged:
    sketch = Sketch.of(recipe, space.cluster(recipe))
    held = room.least(sketch)
    fits = held <= sketch.prices.cluster.gpu.memory
    return Judged(layout, bound(sketch) if fits else 0.0, held, fits)


def simulated(space: Space, layout: Layout) -> Row:
    """Return the figures of a layout: only its bytes if it does not fit, or why it has none."""
    recipe = space.recipe(layout)
    try:
        cluster = space.cluster(recipe)
        held = room.exact(recipe, cluster)
        if held is not None and held > cluster.gpu.memory:
            return {"outcome": "memory", "least_bytes": held, "simulated": False}
        with keeping():
            ran = run(recipe, cluster=cluster)
        found, causes = with_causes(ran)
    except (InputError, DeadlockError) as error:
        said = " ".join(str(error).splitlines()[0].split())
        return {"outcome": "refused", "refused": said, "simulated": True}
    main = max(causes, key=lambda cause: (causes[cause], cause), default=None)
    outcome = "simulated" if found["fits"] else "memory"
    why = {"main_cause": main, "main_cause_s": causes[main] if main else 0.0}
    return {"outcome": outcome, **found, **why, "energy_j": joules(ran), "simulated": True}
