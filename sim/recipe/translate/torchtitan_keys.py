"""The keys of a torchtitan job configuration, as ``section.key``; typed access."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from schedules.input_error import InputError
from sim.files import toml
from sim.keys.refusals import brief
from sim.recipe.translate.fates import Fates


@dataclass(frozen=True)
class Keys:
    """The keys of a file, as ``section.key``."""

    where: str  # name of the file in errors
    given: Mapping[str, Any]
    gpus: int | None = None  # of the recipe
    old: bool = False  # whether a pipeline's keys are in [experimental], as in 2024

    def refuse(self, what: str) -> NoReturn:
        """Raise InputError about this file."""
        raise InputError(f"{self.where}: {what}")

    def of(self, kind: type, key: str, default: Any) -> Any:
        """Return the value of a key.

        Raises InputError for a value of another type than ``kind``.
        """
        found = self.given.get(key, default)
        if not isinstance(found, kind) or isinstance(found, bool) != (kind is bool):
            name = {int: "a whole number", bool: "true or false", str: "text", list: "a list"}
            self.refuse(f"{key} = {brief(found)} must be {name[kind]}")
        return found

    def degree(self, key: str) -> int:
        """Return a number of ranks; 1 unless given."""
        return self.count(f"parallelism.{key}", 1)

    def replicas(self) -> tuple[int, int]:
        """Return the ranks that share a copy and the copies; the GPUs fill an open degree."""
        replicas = self.degree("data_parallel_replicate_degree")
        shards: int = self.of(int, "parallelism.data_parallel_shard_degree", -1)
        if shards < 1:
            axes = ("tensor", "pipeline", "context")
            each = math.prod(self.degree(f"{axis}_parallel_degree") for axis in axes)
            shards = max(1, (self.gpus or 1) // each // replicas)
        kinds = {"fsdp": "fsdp", "ddp": "ddp"}  # 2024
        ddp = self.choice("training.data_parallel_type", kinds, "fsdp") == "ddp"
        return (1, shards) if ddp else (shards, replicas)

    def count(self, key: str, default: int) -> int:
        """Return a whole number.

        Raises InputError for a number below 1 and for other values.
        """
        found: int = self.of(int, key, default)
        if found < 1:
            self.refuse(f"{key} = {brief(found)} must be at least 1")
        return found

    def choice(self, key: str, meanings: Mapping[str, str], default: str) -> str:
        """Return what a key's value means in a recipe.

        Raises InputError for a value without a meaning.
        """
        found = self.of(str, key, default)
        if found not in meanings:
            self.refuse(f"{key} = {brief(found)} is not simulated; there are {', '.join(meanings)}")
        return meanings[found]


def keys(text: str, where: str, table: Fates, gpus: int | None = None) -> Keys:
    """Return the keys of a file's text, renamed ones under the name of 2025.

    Raises InputError, in one sentence, when it is not TOML, or gives a translated key two values.
    """
    said = dict(_flat(toml(text, where), ""))
    given: dict[str, Any] = {}
    by: dict[str, str] = {}
    for key, value in said.items():
        name = table.renamed.get(key, key)
        if name in table.translated and name in given and given[name] != value:
            raise InputError(f"{where}: {by[name]} and {key} contradict each other; leave one out")
        given[name], by[name] = value, key
    return Keys(where, given, gpus, any(key.startswith("experimental.pipeline") for key in said))


def _flat(table: Mapping[str, Any], above: str) -> Iterable[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value
