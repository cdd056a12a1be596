"""Reads what a profiler's file says about itself: its rank, its groups, where its clock begins."""

from __future__ import annotations

import re
from pathlib import Path

from traces.kineto.events import Event
from traces.kineto.fields import LONGEST, Wrong, get
from traces.kineto.rows import RankRows


def settle(trace: RankRows, facts: Event) -> None:
    """Give a trace its rank and groups, and put its rows on the clock that the file names.

    A fact of the wrong type is ignored, and a warning says so.
    """
    for part in (_groups, _rank, _device, _clock):
        try:
            part(trace, facts)
        except Wrong as error:
            trace.warnings.append(f"{trace.path.name}: {error}; it is ignored")
    if trace.rank < 0:
        trace.rank = rank_in_name(trace.path)


def _rank(trace: RankRows, facts: Event) -> None:
    info = get(facts, "distributedInfo")
    trace.rank = max(get(info, "rank"), -1)
    trace.world_size = max(get(info, "world_size"), 0)


def _device(trace: RankRows, facts: Event) -> None:
    devices = [of for of in get(facts, "deviceProperties") if isinstance(of, dict)]
    trace.sms = max([get(of, "numSms") for of in devices], default=0)


def _groups(trace: RankRows, facts: Event) -> None:
    for group in get(get(facts, "distributedInfo"), "pg_config"):
        if isinstance(group, dict):
            trace.groups[get(group, "pg_name")] = get(group, "ranks")


def _clock(trace: RankRows, facts: Event) -> None:
    base = max(get(facts, "baseTimeNanoseconds"), 0)
    if base >= LONGEST:
        raise Wrong(f"baseTimeNanoseconds is {base:.4g}, where less than {LONGEST:.2g} would do")
    if not base:
        return
    trace.operators.shift(base)
    for key in ("gpu", "calls", "syncs", "marks", "posted"):
        rows = getattr(trace, key)
        for k, row in enumerate(rows):
            moved = {f: getattr(row, f) + base for f in ("start", "end") if f in row._fields}
            rows[k] = row._replace(**moved)


def rank_in_name(path: Path) -> int:
    """Return the rank in a file's name, or -1 if there is none.

    >>> rank_in_name(Path("rank-3.Apr_03.pt.trace.json.gz")), rank_in_name(Path("kineto_7.json"))
    (3, 7)
    >>> rank_in_name(Path("host1_4001.170.pt.trace.json"))
    -1
    """
    found = re.search(r"(?:rank|worker)[-_]?(\d{1,6})(?!\d)", path.name) or re.search(
        r"_(\d{1,5})\.(?:pt\.trace\.)?json", path.name
    )
    return int(found[1]) if found else -1
