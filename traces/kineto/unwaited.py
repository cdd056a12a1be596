"""The collectives of a rank that nothing has waited for yet, in the order of their launches."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Sequence

from traces.kineto.message import CommunicationRecord


class Unwaited:
    """Collectives that nothing has waited for, the oldest first."""

    def __init__(self, messages: Sequence[tuple[CommunicationRecord, ...]]) -> None:
        self._messages = messages
        self._ops: OrderedDict[int, None] = OrderedDict()
        self._numbered: dict[int, deque[int]] = defaultdict(deque)  # by sequence number

    def __len__(self) -> int:
        return len(self._ops)

    def append(self, op: int) -> None:
        """Add a collective that was launched."""
        self._ops[op] = None
        for sequence in {message.sequence for message in self._messages[op]}:
            self._numbered[sequence].append(op)

    def pop(self, sequence: int) -> int:
        """Return the collective of this number, or else the oldest; -1 if there is none."""
        some = self._numbered[sequence] if sequence >= 0 else deque()
        while some:
            op = some.popleft()
            if op in self._ops:
                del self._ops[op]
                return op
        return self._ops.popitem(last=False)[0] if self._ops else -1
