"""Which layouts of a job there are: what a search tries of each key, and which of it is legal.

A layout is what replaces values of the recipe, by dotted key. A *group* of layouts has the keys of
:data:`SPLIT` in common: how the job is split, its shards and its micro-batch. Its *members* differ
in schedule, recomputation and offload. The recipe's own checks say what is legal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from schedules.input_error import InputError
from sim import strategies
from sim.machine.cluster import Cluster
from sim.machine.topology import read
from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.recipe.refusals import SECTIONS, unknown
from sim.runs.kept import Kept
from sim.runs.shared import cluster_of
from sim.search.choices import CHOICES, DEGREES

Layout = dict[str, Any]
_clusters = Kept[Cluster](4)
SPLIT = (
    "cluster.gpus", "parallelism.tp", "parallelism.cp", "parallelism.pp", "parallelism.dp",
    "parallelism.ep", "parallelism.etp", "parallelism.sp", "parallelism.zero", "parallelism.fsdp",
    "training.micro_batch",
)  # fmt: skip
"""The keys that layouts of one group have in common."""
NEEDED = (*DEGREES, "parallelism.zero", "training.micro_batch", "schedule.name")
"""The keys that no layout leaves out."""
INSIDE = (
    "schedule.name", "schedule.chunks", "schedule.layers_per_stage", "training.recompute",
    "training.offload",
)  # fmt: skip


@dataclass(frozen=True)
class Space:
    """All layouts of a recipe on one number of GPUs.

    ``data`` is the recipe as it is written, and its paths are relative to ``folder``. ``given`` has
    the only values of some keys, of the space's own or others. ``common`` replaces values of the
    recipe in every layout.
    """

    data: Mapping[str, Any]
    folder: Path
    gpus: int
    given: Mapping[str, Sequence[object]]
    common: Mapping[str, object]
    machine: str = ""  # the topology's tables, which a file may change

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of a layout, in the order in which they are chosen."""
        return (*SPLIT, *INSIDE, *(key for key in self.given if key not in (*SPLIT, *INSIDE)))

    @cached_property
    def base(self) -> Recipe:
        """The recipe with as little split as can be, for the sizes of model and batch.

        Raises InputError for a recipe that describes no job however it is split.
        """
        own = {"cluster.gpus": 1, **dict.fromkeys(DEGREES, 1), "parallelism.zero": 0}
        plain = {"parallelism.fsdp": None, "parallelism.overlap_param_gather": None}
        left = dict.fromkeys(("schedule.layers_per_stage", "schedule.chunks"))
        one = {"training.micro_batch": 1, "schedule.name": None, "parallelism.sp": False}
        return self._parsed({**own, **plain, **left, **one})

    @cached_property
    def own(self) -> Recipe | None:
        """The recipe as it is, if it is a job on as many GPUs as it says."""
        try:
            return self._parsed({})
        except InputError:
            return None

    @property
    def stated(self) -> int:
        """The number of GPUs that the recipe states."""
        if self.own:
            return self.own.cluster.gpus
        said = self.common.get("cluster.gpus", self.data.get("cluster", {}).get("gpus"))
        if not isinstance(said, int):
            raise InputError("the recipe states no cluster.gpus; give a number of GPUs")
        return said

    def _parsed(self, layout: Mapping[str, object]) -> Recipe:
        return recipe_file.parse(self.data, self.folder, {**self.common, **layout})

    def recipe(self, layout: Mapping[str, object]) -> Recipe:
        """Return the complete recipe of a layout; raises InputError where it is not legal."""
        return self._parsed(layout)

    def legal(self, layout: Mapping[str, object]) -> Recipe | None:
        """Return the complete recipe of a layout, or None where it is not legal."""
        try:
            return self._parsed(layout)
        except InputError:
            return None

    def groups(self) -> Iterator[Layout]:
        """Yield the keys of SPLIT of every group, in a fixed order; few of them are not legal."""
        yield from self._grown({"cluster.gpus": self.gpus}, SPLIT[1:])

    def members(self, group: Layout) -> Iterator[Layout]:
        """Yield the layouts of a group, in a fixed order; some of them may not be legal."""
        yield from self._grown(group, self.keys[len(SPLIT) :])

    def _grown(self, layout: Layout, keys: Sequence[str]) -> Iterator[Layout]:
        if not keys:
            yield layout
            return
        for value in self._values(keys[0], layout):
            yield from self._grown({**layout, keys[0]: value}, keys[1:])

    def _values(self, key: str, layout: Layout) -> Sequence[object]:
        if key in self.given:
            return self.given[key]
        return CHOICES[key](self, layout)

    @cached_property
    def plain(self) -> bool:
        """Whether the first legal member of a group computes no more than all others."""
        known = self.own is None or self.own.flushed
        return known and not {*self.given} - {*SPLIT}

    def cluster(self, recipe: Recipe) -> Cluster:
        """Return the cluster of a layout, which is kept for the next ones on the same machine."""
        of = recipe.simulation
        key = (self.machine, recipe.cluster, of.clock, of.spread)
        return _clusters.of(key, lambda: cluster_of(recipe))

    @cached_property
    def node(self) -> int:
        """Number of GPUs of a node."""
        return int(read(self.base.cluster.topology)["node"]["gpus"])

    @cached_property
    def tried(self) -> Mapping[str, tuple[object, ...]]:
        """The values that features declare for their keys."""
        return {k: v for of in strategies.declared("TRIED") for k, v in of.items()}


def space(
    path: Path,
    gpus: int,
    given: Mapping[str, Sequence[object]] | None = None,
    common: Mapping[str, object] | None = None,
) -> Space:
    """Return the layouts of the recipe in a file on so many GPUs.

    ``given`` has the only values to try of some keys. Raises InputError for a recipe that cannot be
    read and for a key that no recipe has.
    """
    for key in given or {}:
        section, _, name = key.partition(".")
        if name not in SECTIONS.get(section, ()):
            raise InputError(unknown(key))
        if section in ("model", "cluster") or key == "training.global_batch":
            raise InputError(f"a search keeps the recipe's {key}; replace it there, or with --set")
    known = set(common or {}) & set(given or {})
    if known:
        raise InputError(f"{min(known)} is both set and varied; leave one of them out")
    folder = path.parent.resolve()
    made = Space(recipe_file.read(path), folder, gpus, dict(given or {}), dict(common or {}))
    _takes(made)
    return replace(made, machine=repr(read(made.base.cluster.topology)))


def _takes(of: Space) -> None:
    """Raise InputError for a value that its key never takes, or one that a layout must state."""
    for key, values in of.given.items():
        if key in NEEDED and None in values:
            raise InputError(f"every layout needs a value of {key}; give those to try, not none")
        for value in values:
            recipe_file.written(of.data, of.folder, {"cluster.gpus": 1, **of.common, key: value})
