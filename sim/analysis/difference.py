"""A helper of analyses: two timelines compared.

They are compared op by op, and by a waterfall from one step time to the other.

The waterfall compares the causes of the seconds on both critical paths. The seconds of a path sum
to its step, so the differences by cause sum to the difference of the steps, whatever the jobs are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sim.analysis.path import by_cause, causes, path
from sim.late import pd
from sim.timeline import Timeline

StandIns = NDArray[np.int64] | None
"""For each rank the one that was simulated in its place, where that is known."""
_PEER = r"( [→←]|(?<=pair) )\d+$"
"""The peer in a stream's name, in which ranks that are alike differ."""
KEY = ["name", "stage", "microbatch", "phase", "layer", "rank", "stream", "step", "nth"]


@dataclass(frozen=True, eq=False)
class Difference:
    """The difference from one timeline, "before", to another, "after"."""

    before_s: float
    after_s: float
    waterfall: dict[str, float]
    """Seconds by which each cause's part of the critical path grew, the largest first; their sum,
    correctly rounded, is the difference of the steps."""
    ops: pd.DataFrame
    """A row for every op of either timeline; see :func:`aligned`."""


def difference(
    before: Timeline, after: Timeline, stand_ins: Sequence[StandIns] = (None, None)
) -> Difference:
    """Compare two timelines, simulated or recorded; :func:`aligned` explains ``stand_ins``."""
    shares = [by_cause(path(one)) for one in (before, after)]
    names = sorted({*shares[0], *shares[1]})
    parts = {name: shares[1].get(name, 0.0) - shares[0].get(name, 0.0) for name in names}
    parts = _exact({k: v for k, v in parts.items() if v}, after.seconds - before.seconds)
    ordered = dict(sorted(parts.items(), key=lambda item: (-abs(item[1]), item[0])))
    return Difference(before.seconds, after.seconds, ordered, aligned(before, after, stand_ins))


def _exact(parts: dict[str, float], total: float) -> dict[str, float]:
    """Add what rounding left over (about 1e-16 of the steps) to the smallest part; return all.

    The last bit of the smallest part is the finest, so that what is left can be added there.
    """
    out = dict(parts)
    if not out:
        return {"rounding": total} if total else {}
    least = min(out, key=lambda name: (abs(out[name]), name))
    for _ in range(4):
        others = (value for name, value in out.items() if name != least)
        out[least] = math.fsum([total, *(-value for value in others)])
        if math.fsum(out.values()) == total:
            break
    return out


def aligned(
    before: Timeline, after: Timeline, stand_ins: Sequence[StandIns] = (None, None)
) -> pd.DataFrame:
    """Match the ops of both timelines: by name, stage, microbatch, phase, layer, rank and so on.

    Ops also need the same stream and step; those equal in all of these go by their order, ``nth``.
    Columns ``start``, ``seconds`` and ``op`` of each side end in ``_before`` and ``_after``. They
    are empty where a side has no such op (``op`` is -1). ``change_s`` is the difference of the
    seconds.

    ``stand_ins`` says for each side, and each rank of its job, which rank was simulated in its
    place. So the ops of a rank that only one side simulated are matched with those of the rank that
    stands for it on the other. ``ranks`` is how many ranks of the job a row is about.
    """
    sides = [_keyed(one) for one in (before, after)]
    ranks, count = _ranks([side["rank"].unique() for side in sides], stand_ins)
    sides = [_on(ranks, *side) for side in zip(sides, stand_ins, strict=True)]
    out = sides[0].merge(sides[1], "outer", on=KEY, suffixes=("_before", "_after"))
    for side in ("_before", "_after"):
        out[f"op{side}"] = out[f"op{side}"].fillna(-1).astype(np.int64)
        cause = out.pop(f"cause{side}")
        out["cause"] = cause if "cause" not in out else out["cause"].fillna(cause)
    out["ranks"] = count[np.searchsorted(ranks, out["rank"])]
    return out.assign(change_s=out["seconds_after"] - out["seconds_before"])


def _ranks(
    simulated: Sequence[NDArray[np.int64]], stand_ins: Sequence[StandIns]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return one rank of those that are alike on both sides, ascending, and how many these are.

    Where a side does not say which are alike, they are the ranks that either side has, one each.
    """
    known = [of for of in stand_ins if of is not None]
    if len(known) < len(stand_ins):
        ranks = np.union1d(*simulated)
        return ranks, np.ones(len(ranks), np.int64)
    both = np.full((len(known), max(map(len, known))), -1)
    for row, of in zip(both, known, strict=True):
        row[: len(of)] = of
    _, first, count = np.unique(both, axis=1, return_index=True, return_counts=True)
    order = np.argsort(first)
    return first[order], count[order]


def _on(ranks: NDArray[np.int64], keyed: pd.DataFrame, stand_ins: StandIns) -> pd.DataFrame:
    """Return the ops of ``ranks``; for one that was not simulated, those of its stand-in."""
    if stand_ins is None:
        return keyed
    there = ranks[ranks < len(stand_ins)]
    stand_in = pd.DataFrame({"rank": stand_ins[there], "on": there})
    return stand_in.merge(keyed, on="rank").assign(rank=lambda of: of["on"]).drop(columns="on")


def _keyed(timeline: Timeline) -> pd.DataFrame:
    graph, frame = timeline.graph, timeline.to_pandas()
    for name in ("name", "stream", "phase"):
        frame[name] = frame[name].astype(str)
    frame["stream"] = frame["stream"].str.replace(_PEER, "", regex=True)
    frame["step"] = graph.step
    frame["nth"] = frame.groupby(KEY[:-1], sort=False).cumcount()
    of_work = np.array(causes(graph), object)
    return frame[[*KEY, "start"]].assign(
        seconds=timeline.end - timeline.start, op=np.arange(len(graph)), cause=of_work[graph.work]
    )


def by_op(of: pd.DataFrame, most: int = 12) -> pd.DataFrame:
    """Add up ops by name and cause, over all ranks of the job; the largest changes come first.

    ``of`` is what :func:`aligned` returns. ``before`` and ``after`` count the ops, ``before_s`` and
    ``after_s`` are their seconds. At most ``most`` rows are returned.
    """
    sums = of.assign(
        before=of["ranks"] * (of["op_before"] >= 0),
        after=of["ranks"] * (of["op_after"] >= 0),
        before_s=of["ranks"] * of["seconds_before"].fillna(0.0),
        after_s=of["ranks"] * of["seconds_after"].fillna(0.0),
    )
    columns = ["before", "after", "before_s", "after_s"]
    out = sums.groupby(["name", "cause"], sort=True)[columns].sum().reset_index()
    out["change_s"] = out["after_s"] - out["before_s"]
    order = np.argsort(-out["change_s"].abs().to_numpy(), kind="stable")[:most]
    return out.iloc[order].reset_index(drop=True)
