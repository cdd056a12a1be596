"""A program that is being rewritten: items are inserted, and all needs stay right."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sim.builder.program import Item, Program
from sim.builder.slots import Slot
from sim.graph import Memory

Key = int | tuple[str, int]
"""An item: of the old program by its position, a new one by its name."""


@dataclass
class ProgramDraft:
    """Old items keep their order; new ones go before or after one of them, or to the start.

    >>> from sim.graph import Fixed
    >>> from sim.builder.program import Kernel
    >>> a, b = (Kernel(name, Fixed(1.0), "F") for name in "ab")
    >>> draft = ProgramDraft([a, b._replace(needs=(0,))])
    >>> draft.put(("new", 0), a._replace(name="new"), after=0)
    >>> draft.wait(1, ("new", 0))
    >>> [(item.name, item.needs) for item in draft.finish()]
    [('a', ()), ('new', ()), ('b', (0, 1))]
    """

    program: Program
    _new: dict[Key, Item] = field(default_factory=dict)
    _lead: list[Key] = field(default_factory=list)
    _before: dict[int, list[Key]] = field(default_factory=lambda: defaultdict(list))
    _after: dict[int, list[Key]] = field(default_factory=lambda: defaultdict(list))
    _needs: dict[Key, list[Key | Slot]] = field(default_factory=lambda: defaultdict(list))
    _memory: dict[Key, list[Memory]] = field(default_factory=lambda: defaultdict(list))

    def put(
        self,
        key: tuple[str, int],
        item: Item,
        needs: Iterable[Key | Slot] = (),
        before: int | None = None,
        after: int | None = None,
    ) -> None:
        """Put a new item beside an old one, after those put there before; else at the start."""
        self._new[key] = item
        self._needs[key] += needs
        if before is not None:
            self._before[before].append(key)
        elif after is not None:
            self._after[after].append(key)
        else:
            self._lead.append(key)

    def has(self, key: Key) -> bool:
        """Return whether there is such a new item."""
        return key in self._new

    def wait(self, key: Key, *needs: Key | Slot) -> None:
        """Let an item wait for more."""
        self._needs[key] += needs

    def remember(self, key: Key, category: str, size: float, at: str) -> None:
        """Let an item allocate (or free, when negative) bytes of a category, if any."""
        if size:
            self._memory[key].append(Memory(category, size, at))

    def finish(self) -> Program:
        """Return the new program."""
        order: list[Key] = list(self._lead)
        for i in range(len(self.program)):
            order += [*self._before.get(i, ()), i, *self._after.get(i, ())]
        place = {key: at for at, key in enumerate(order)}
        return [self._item(key, place) for key in order]

    def _item(self, key: Key, place: dict[Key, int]) -> Item:
        item = self.program[key] if isinstance(key, int) else self._new[key]
        keys: Sequence[Key | Slot] = (*item.needs, *self._needs.get(key, ()))
        needs = tuple(dict.fromkeys([k if isinstance(k, Slot) else place[k] for k in keys]))
        more = self._memory.get(key, ())
        if needs == item.needs and not more:
            return item
        return item._replace(needs=needs, memory=(*item.memory, *more))
