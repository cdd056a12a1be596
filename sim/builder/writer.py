"""Writing a program down in issue order, with what every item needs from the other stream."""

from __future__ import annotations

from sim.builder.program import Collective, Item, Kernel
from sim.graph import Memory
from sim.model.operators import Launch


class Writer:
    """A program being written.

    A collective starts when the kernel issued before it has ended, as NCCL's do. The next kernel
    waits for an exposed one, unless it says that it needs no wait.

    >>> from sim.graph import Compute
    >>> writer, launch = Writer(), Launch("norm", Compute("norm", 0.0, 8.0))
    >>> writer.kernel(launch, "F")
    >>> writer.collective("gather", "tp", "all_gather", 8.0, "F")
    1
    >>> writer.kernel(launch, "F")
    >>> [item.needs for item in writer.items]
    [(), (0,), (1,)]
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._kernel: tuple[int, ...] = ()  # position of the latest kernel
        self._exposed: tuple[int, ...] = ()  # collectives that the next kernel waits for
        self._transfers: dict[str, int] = {}  # position of the latest transfer by name

    def kernel(
        self,
        launch: Launch,
        phase: str,
        layer: int = -1,
        needs: tuple[int, ...] = (),
        wait: bool = True,
    ) -> None:
        """Issue a kernel and, before it, the transfers that run beside it.

        Without ``wait`` it also runs beside the exposed collectives.
        """
        for name, axis, kind, size in launch.sends:
            i = self.collective(name, axis, kind, size, phase, layer, exposed=False)
            self._transfers[name] = i
        needs = (*needs, *(self._transfers[name] for name in launch.needs))
        if wait:
            needs, self._exposed = (*self._exposed, *needs), ()
        self._kernel = (len(self.items),)
        self.items.append(Kernel(launch.name, launch.work, phase, layer, needs))

    def collective(
        self,
        name: str,
        axis: str,
        kind: str,
        size: float,
        phase: str,
        layer: int = -1,
        exposed: bool = True,
    ) -> int:
        """Issue a collective over a buffer of ``size`` bytes; return its position."""
        self.items.append(Collective(name, axis, kind, size, phase, layer, self._kernel))
        if exposed:
            self._exposed += (len(self.items) - 1,)
        return len(self.items) - 1

    def remember(self, i: int, category: str, size: float, at: str) -> None:
        """Let item ``i`` allocate (or free, when negative) bytes of a category, if any."""
        if size:
            memory = (*self.items[i].memory, Memory(category, size, at))
            self.items[i] = self.items[i]._replace(memory=memory)
