"""How many replicas share parameters; how they come and go is a feature's own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self


@dataclass(frozen=True)
class Sharding:
    """How parameters are shared: ``group`` ranks share a copy, of which there are ``replicas``."""

    group: int
    replicas: int = 1
    words: str = field(default="", kw_only=True)  # how far parameters are gathered ahead

    @property
    def gathers(self) -> tuple[int, int]:
        """How often, at least, a forward and a backward gather a layer that is not there."""
        return 0, 0

    @property
    def one_by_one(self) -> bool:
        """Whether gathers and reductions share one communicator, which runs them one by one."""
        return False

    def of_experts(self, degree: int) -> Self:
        """Return the same over the ``degree`` ranks that hold the same experts.

        As in torchtitan's meshes (``efsdp``), copies of all parameters are also copies of the
        experts, so experts have fewer shards by the factor by which ep and etp split them.
        """
        replicas = degree if self.group == 1 else self.replicas
        return replace(self, group=degree // replicas, replicas=replicas)
