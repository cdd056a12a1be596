"""Reads one file of PyTorch's profiler as a stream of events, in memory that does not grow with it.

ijson reads what is JSON. Until July 2026 Kineto did not escape quotes in names, so a file may not
be JSON. Then it is read again event by event, which works because Kineto begins every event with
"ph" or "name"; events that are not JSON are left out. Numbers come as int and Decimal: microseconds
since 1970 with three decimals have more digits than a float.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

import ijson

from schedules.input_error import InputError
from traces.kineto.fields import decoded
from traces.packed import opened
from traces.recording import Report

Event = dict[str, Any]
_CHUNK = 1 << 16
_EDGE = 1 << 20  # a file's facts are looked for in so many bytes at both its ends
_BEGIN = re.compile(rb'(?<=[\[,])\s*(?=\{\s*"(?:ph|name)"\s*:)')
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENT = re.compile(r"[\s,]*(\{)")
_LARGEST = 1 << 24  # longer text (bytes) in which no event begins is skipped
LONG = 4000  # digits
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)
_FACTS = ("baseTimeNanoseconds", "distributedInfo", "deviceProperties", "traceName")


class Source:
    """A file of events; ``facts`` and ``warnings`` are complete once all events have been read."""

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self._report = path, report
        self.facts: Event = {}
        self.warnings: list[str] = []
        self._head, self._tail = b"", b""

    def events(self) -> Iterator[Event]:
        """Yield all events that can be read, in the file's order."""
        read = 0
        try:
            with opened(self.path) as raw:
                tee = _Tee(raw, self._saw, LONG)
                for event in ijson.items(tee, "traceEvents.item", use_float=False):
                    read += isinstance(event, dict)
                    yield event
        except BROKEN as error:
            self._cut(read, str(error))
        except (ijson.JSONError, _LongNumber) as error:
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
            f"{self.path.name} is cut off ({why}); the {read:,} events before that are read"
        )

    def _carefully(self, done: int) -> Iterator[Event]:
        """Yield the events after the first ``done``, one by one; what is no JSON is counted."""
        lost = read = 0
        with opened(self.path) as raw:
            for piece in _pieces(_Tee(raw, self._saw)):
                for event in _decoded(piece):
                    lost += event is None
                    read += event is not None
                    if event is not None and read > done:
                        yield event
        if lost:
            self.warnings.append(
                f"{self.path.name}: {lost:,} event{'s are' if lost > 1 else ' is'} not JSON "
                "(a name that holds a quote?) and left out"
            )


def facts(head: bytes, tail: bytes) -> Event:
    """Return what stands beside the events: before them and, in new files, behind them."""
    head = head.partition(b'"traceEvents"')[0]
    text = (head + b"\n" + tail).decode("utf-8", "replace")
    out: Event = {}
    for key in _FACTS:
        for found in re.finditer(rf'"{key}"\s*:\s*', text):
            if (value := decoded(text, found.end())) is not None:
                out[key] = value[0]
    return out


def _decoded(piece: bytes) -> Iterator[Event | None]:
    """Yield the events that follow one another in a text; None where the rest is no JSON."""
    text, at = piece.decode("utf-8", "replace"), 0
    while begin := _EVENT.match(text, at):
        value = decoded(text, begin.start(1))
        yield value[0] if value else None
        at = value[1] if value else len(text)


class _LongNumber(Exception):  # noqa: N818  (it never leaves this module)
    """A number of thousands of digits is coming."""


class _Tee:
    """Reads on behalf of a parser, and shows every piece to a second reader.

    ijson 3.6 ends the process at an integer of over 4,300 digits, which Python refuses to make. So
    this raises _LongNumber before a number of ``most`` digits is handed on; it may already do so at
    half as many.
    """

    def __init__(
        self, raw: BufferedReader, saw: Callable[[bytes, int], None], most: int = 0
    ) -> None:
        self._raw, self._saw, self._digits = raw, saw, b""
        self._part = most // 2
        packed = getattr(raw, "fileobj", None)  # a gzip file's packed bytes
        self._place = packed.tell if packed is not None else raw.tell

    def read(self, size: int = -1) -> bytes:
        piece = self._raw.read1(size)  # returns what is there before a cut-off file fails
        if piece:
            self._saw(piece, self._place())
        if self._part:
            text = self._digits + piece
            places = range(0, len(text) - self._part + 1, self._part)
            if any(text[k : k + self._part].isdigit() for k in places):
                raise _LongNumber
            self._digits = text[len(text.rstrip(b"0123456789")) :]
        return piece


def _pieces(file: _Tee) -> Iterator[bytes]:
    """Yield texts that begin with an event and end before the next one that Kineto would write."""
    held, started = b"", False
    while True:
        try:
            piece = file.read(_CHUNK)
        except BROKEN:
            piece = b""
        held += piece
        if not started and (begin := _LIST.search(held)):
            held, started = held[begin.end() :], True
        parts = _BEGIN.split(held)
        yield from parts[:-1] if started else ()
        held = parts[-1] if len(parts[-1]) < _LARGEST else b""
        if not piece:
            if started and held:
                yield held
            return
