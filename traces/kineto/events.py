"""One file of PyTorch's profiler as a stream of events, in memory that does not grow with it.

ijson reads what is JSON. Until July 2026 Kineto did not escape quotes in names, so a file may not
be; then it is read again event by event, which works as Kineto begins every event with "ph" or
"name", and events that are not JSON are left out. Numbers come as int and Decimal: microseconds
since 1970 with three decimals have more digits than a float.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from io import BufferedReader
from pathlib import Path
from typing import Any

import ijson

from schedules._input_error import InputError
from traces.packed import opened
from traces.recording import Report

Event = dict[str, Any]
_CHUNK = 1 << 16
_EDGE = 1 << 20  # bytes at both ends of a file in which its facts are looked for
_BEGIN = re.compile(rb'(?<=[\[,])\s*(?=\{\s*"(?:ph|name)"\s*:)')
_FACTS = ("baseTimeNanoseconds", "distributedInfo", "deviceProperties", "traceName")


class Source:
    """A file of events. After :meth:`events` is exhausted, ``facts`` and ``warnings`` are there."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self._report = path, report
        self.facts: Event = {}
        self.warnings: list[str] = []
        self._head, self._tail = b"", b""

    def events(self) -> Iterator[Event]:
        """All events that can be read, in the file's order."""
        read = 0
        try:
            with opened(self.path) as raw:
                for event in ijson.items(_Tee(raw, self._saw), "traceEvents.item", use_float=False):
                    read += 1
                    yield event
        except (EOFError, zlib.error) as error:
            self._cut(read, str(error))
        except ijson.JSONError as error:
            if "premature EOF" in str(error) or "ncomplete JSON" in str(error):
                self._cut(read, "the JSON ends in the middle")
            else:
                yield from self._carefully(read)
        self.facts = facts(self._head, self._tail)

    def _saw(self, piece: bytes, done: int) -> None:
        if len(self._head) < _EDGE:
            self._head += piece[: _EDGE - len(self._head)]
        self._tail = (self._tail + piece)[-_EDGE:] if len(piece) < _EDGE else piece[-_EDGE:]
        self._report(f"reading {self.path.name}", done, self.path.stat().st_size)

    def _cut(self, read: int, why: str) -> None:
        if not read:
            raise InputError(f"{self.path} holds no event that can be read: {why}")
        self.warnings.append(
            f"{self.path.name} is cut off ({why}); the {read:,} events before are read"
        )

    def _carefully(self, done: int) -> Iterator[Event]:
        """The events after the first ``done``, each by itself; what is no JSON is counted."""
        parse = json.JSONDecoder(parse_float=Decimal, strict=False).raw_decode
        lost = read = 0
        with opened(self.path) as raw:
            for piece in _pieces(_Tee(raw, self._saw)):
                try:
                    event, _ = parse(piece.decode("utf-8", "replace"))
                except json.JSONDecodeError:
                    lost += 1
                    continue
                read += 1
                if read > done:
                    yield event
        if lost:
            self.warnings.append(
                f"{self.path.name}: {lost:,} event{'s are' if lost > 1 else ' is'} not JSON "
                "(a name that holds a quote?) and left out"
            )


def facts(head: bytes, tail: bytes) -> Event:
    """What stands beside the events: before them, and in new files behind them."""
    head = head.partition(b'"traceEvents"')[0]
    text = (head + b"\n" + tail).decode("utf-8", "replace")
    parse = json.JSONDecoder(strict=False).raw_decode
    out: Event = {}
    for key in _FACTS:
        for found in re.finditer(rf'"{key}"\s*:\s*', text):
            try:
                out[key] = parse(text, found.end())[0]
            except json.JSONDecodeError:
                continue
    return out


class _Tee:
    """Reads on behalf of a parser, and shows every piece to somebody else."""

    def __init__(self, raw: BufferedReader, saw: Callable[[bytes, int], None]) -> None:
        self._raw, self._saw = raw, saw
        packed = getattr(raw, "fileobj", None)  # of a gzip file: what is packed
        self._place = packed.tell if packed is not None else raw.tell

    def read(self, size: int = -1) -> bytes:
        piece = self._raw.read1(size)  # what there is, before a file that was cut off fails
        if piece:
            self._saw(piece, self._place())
        return piece


def _pieces(file: _Tee) -> Iterator[bytes]:
    """Text that begins with an event and ends before the next one."""
    held, started = b"", False
    while True:
        try:
            piece = file.read(_CHUNK)
        except (EOFError, zlib.error):
            piece = b""
        held += piece
        parts = _BEGIN.split(held)
        if not started and len(parts) > 1:
            parts, started = parts[1:], True
        yield from parts[:-1] if started else ()
        held = parts[-1]
        if not piece:
            if started and held:
                yield held
            return
