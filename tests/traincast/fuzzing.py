"""What fuzzers share: nasty values, a command in this process within limits, what is wrong with it.

Time is that of the CPU, so that nothing depends on a quiet machine; memory is what a command
takes more than the process has already.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from traincast import main as cli

LIMIT = 10  # seconds for a command
MOST = 2**31  # bytes for a command
NOTES = ("does not fit: ",)  # how a line on standard error begins that is no complaint
SIGNED = (".clocks", ".nearest_measured.error")  # figures that may be below 0
HUGE = "<an integer of 5,000 digits>"  # which no json writes
VALUES: tuple[Any, ...] = (
    None, "", "abc", "-5", "💥" * 50, "9" * 5000, [], [1], [[]], {}, {"a": 1}, True, False,
    float("nan"), float("inf"), -float("inf"), 1e308, -1e308, 1e18, 1e-300, 0, -1, 1.5, 2**31,
    -(2**31), 2**62, 2**63, 2**64, 10**40, HUGE, "\ud83d", "\x00", "ProfilerStep#" + "9" * 5000,
)  # fmt: skip


class Hang(Exception):  # noqa: N818
    """A command took too long."""


def command(*arguments: object) -> tuple[int, str, str]:
    """Run a command in this process; raises Hang after LIMIT seconds of the CPU."""
    out, error = io.StringIO(), io.StringIO()
    try:
        with _limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            cli.main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(str(end.code)), out.getvalue(), error.getvalue()
    raise AssertionError("main always exits")


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_mapped() + MOST, before[1]))
    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _mapped() -> int:
    """Bytes of addresses that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def complaint(code: int, out: str, error: str) -> str:
    """What is wrong with the end of a command; nothing where it is right."""
    if code == 2:
        lines = error.strip().splitlines()
        return "" if len(lines) == 1 and lines[0].startswith("error: ") and not out else error
    notes = [line for line in error.splitlines() if line and not line.startswith(NOTES)]
    if code != 0 or notes:
        return error or f"exit {code}"
    try:
        found = json.loads(out, parse_constant=float)
    except ValueError:
        return f"no JSON: {out[:200]}"
    return "; ".join(wrong_figures(found))


def wrong_figures(of: Any, where: str = "") -> Iterator[str]:
    """Figures that are no number, or below 0 where only those of ``SIGNED`` may be."""
    if isinstance(of, dict):
        for key, one in of.items():
            yield from wrong_figures(one, f"{where}.{key}")
    elif isinstance(of, list):
        for one in of:
            yield from wrong_figures(one, where)
    elif (isinstance(of, float) and not math.isfinite(of)) or (
        isinstance(of, int | float) and of < 0 and not where.startswith(SIGNED)
    ):
        yield f"{where} is {of}"


def report(numbers: Iterable[int], attempt: Callable[[int], tuple[str, str]], alone: bool) -> int:
    """Try each number; print what is wrong, by its last words, and figures; how many are wrong.

    An attempt returns what it was, the exit code last, and what is wrong; ``alone`` prints all of
    that.
    """
    codes: dict[int, int] = {}
    said: dict[str, list[str]] = {}
    slowest, count = 0.0, 0
    for number in numbers:
        began = time.process_time()
        what, bad = attempt(number)
        slowest, count = max(slowest, time.process_time() - began), count + 1
        code = int(what.split()[-1]) if what.split()[-1].isdigit() else -1
        codes[code] = codes.get(code, 0) + 1
        if bad:
            said.setdefault(_key(bad), []).append(what)
            if alone:
                print(what, bad)
    for key, which in sorted(said.items(), key=lambda item: -len(item[1])):
        print(len(which), key, which[:4])
    wrong = sum(map(len, said.values()))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    ended = ", ".join(f"{n} exit {code}" for code, n in sorted(codes.items()))
    print(f"{count} tried, {wrong} wrong, {ended}; slowest {slowest:.1f} s, {most:.2f} GiB")
    sys.stdout.flush()
    return wrong


def _key(bad: str) -> str:
    return [line for line in bad.splitlines() if line.strip()][-2:][0][-160:]
