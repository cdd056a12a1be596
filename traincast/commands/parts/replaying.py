"""What ``traincast replay`` prints: how long steps and ranks took, recorded and replayed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim import units
from traincast.commands.parts import tables

if TYPE_CHECKING:
    from traces.replay.replays import Replay

LEVELLED = "remove stragglers"
SHOWN = 16
"""How many rows of a table are shown; JSON has them all."""
MISSED = 0.02
"""Share of its steps by which a replay may miss the recording before it says so."""


def figures(found: Replay) -> dict[str, Any]:
    """Return the keys of the JSON: one number for a single step, a list for several."""
    recording = found.recording
    recorded, replayed = found.steps()
    there = np.isfinite(recorded)
    several = int(there.sum()) > 1
    numbers = [recording.steps[k] if recording.steps else k for k in np.flatnonzero(there).tolist()]
    return {
        "format": recording.format,
        "hosts": found.hosts,
        "ops": len(found.timeline.graph),
        "steps": numbers,
        "step_s": recorded[there].tolist() if several else float(recorded[there][0]),
        "replayed_step_s": replayed[there].tolist() if several else float(replayed[there][0]),
        "per_rank": [_rank(found, rank) for rank in found.ranks()],
        "end_error_p95_s": float(np.percentile(found.end_errors(), 95)),
        "counts": dict(recording.counts),
        "warnings": [*recording.warnings, *missed(found)],
    }


def missed(found: Replay) -> list[str]:
    """Return a sentence if the replay misses the recording by over 2 %, and what that means.

    The share is the mean over steps of how far each is off, too long or too short.
    """
    recorded, replayed = (of[np.isfinite(of) & (of > 0)] for of in found.steps())
    if len(recorded) != len(replayed) or not len(recorded):
        return []
    share = float(np.abs(replayed / recorded - 1).mean())
    if share <= MISSED:
        return []
    mean = float(replayed.mean() / recorded.mean() - 1)
    why = "the recording does not show all that its ops waited for"
    why = "calls of the host take no time in it" if found.hosts == "none" else why
    return [
        f"the replay (hosts {found.hosts}) misses the recording by {share:.1%} of a step, "
        f"{mean:+.1%} on average, because {why}; gains of edits are off too"
    ]


def _rank(found: Replay, rank: int) -> dict[str, Any]:
    recorded, replayed = found.of_rank(rank)
    return {"rank": rank, "span_s": recorded, "replayed_span_s": replayed}


def edits(before: Replay, after: Mapping[str, Replay]) -> list[dict[str, Any]]:
    """Return, per edit, the mean step and each rank's span, against the replay without it."""
    step = _mean_step(before)
    out = []
    for text, found in after.items():
        ranks = {rank: (before.of_rank(rank)[1], found.of_rank(rank)[1]) for rank in found.ranks()}
        out.append(
            {
                "edit": text,
                "step_s": _mean_step(found),
                "gain_s": step - _mean_step(found),
                "misses_recording": bool(missed(before)),
                "per_rank": [
                    {"rank": rank, "replayed_span_s": was, "span_s": now}
                    for rank, (was, now) in ranks.items()
                ],
            }
        )
    return out


def _mean_step(of: Replay) -> float:
    replayed = of.steps()[1]
    return float(replayed[np.isfinite(replayed)].mean())


def _show_edits(replayed: float, found: Sequence[dict[str, Any]]) -> None:
    """Print a row per edit, then each rank's span before and after each.

    A "?" follows the change of an edit in a replay that misses its recording.
    """
    rows: list[tuple[Any, ...]] = [("as replayed", replayed, None, None)]
    for one in found:
        after = one["step_s"]
        if one["edit"].strip() == LEVELLED and after > replayed:
            tables.say(
                "the cost of stragglers is unknown: the step in which all ranks are alike is "
                f"longer, by {after / replayed - 1:.2%}"
            )
            rows.append((one["edit"], "-", "-", "-"))
            continue
        doubt = " ?" if one["misses_recording"] else ""
        change = f"{after / replayed - 1:+.2%}{doubt}"
        rows.append((one["edit"], after, change, replayed / after if after else None))
    tables.show(rows, "what if", ("step", 1, "s"), "change", ("times as fast", 3, ".4f"))
    columns = [{row["rank"]: row["span_s"] for row in one["per_rank"]} for one in found]
    spans = [
        (row["rank"], row["replayed_span_s"], *(column[row["rank"]] for column in columns))
        for row in found[0]["per_rank"]
    ]
    names = [f"what if {k}" for k in range(1, len(found) + 1)] if len(found) > 1 else ["what if"]
    shown = [(name, k, "s") for k, name in enumerate(("as replayed", *names), 1)]
    tables.show(_some(spans), "rank", *shown)


def show(result: dict[str, Any]) -> None:
    """Print steps, ranks, and the error of the times at which ops end."""
    recorded, replayed = (np.atleast_1d(result[key]) for key in ("step_s", "replayed_step_s"))
    rows: list[tuple[Any, ...]] = [*zip(result["steps"], recorded, replayed, strict=False)]
    if len(rows) > 1:
        rows = [*_some(rows), ("mean", recorded.mean(), replayed.mean())]
    hosts = f"{result['format']}, hosts {result['hosts']}, {result['ops']:,} ops"
    tables.show(rows, "step", *_BOTH, title=hosts)
    ranks = [(row["rank"], row["span_s"], row["replayed_span_s"]) for row in result["per_rank"]]
    tables.show(_some(ranks), "rank", *_BOTH)
    if "what_if" in result:
        _show_edits(float(replayed.mean()), result["what_if"])
    tables.say(
        f"95 % of ops end within {units.seconds(result['end_error_p95_s'])} of their recorded end."
    )
    for sentence in result["warnings"]:
        tables.say(f"note: {sentence}")


def _error(row: tuple[Any, ...]) -> str:
    _, recorded, replayed = row
    if recorded is None:
        return ""
    return f"{(replayed / recorded - 1) * 100:+.2f} %" if recorded > 0 else "-"


_BOTH = (("recorded", 1, "s"), ("replayed", 2, "s"), ("error", _error))


def _some(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    if len(rows) <= SHOWN:
        return [*rows]
    return [*rows[:SHOWN], (f"... {len(rows) - SHOWN} more", *[None] * (len(rows[0]) - 1))]
