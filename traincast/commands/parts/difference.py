"""What ``traincast diff`` reads and shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from schedules.input_error import InputError
from sim import units
from sim.analysis.difference import Difference, StandIns, by_op
from sim.files import write_text
from sim.timeline import Timeline
from traincast.commands.parts import tables
from traincast.commands.parts.progress import Report

MOST = 12  # rows of ops
LETTERS = 48  # an op's name is cut to so many
PAGE = "diff.html"


WORDS = {"lag": "gap before an op"}
"""Causes, with the words that ``traincast analyze`` has for them."""


class Side(NamedTuple):
    """A timeline, and which rank was simulated for each rank, where that is known."""

    timeline: Timeline
    stand_ins: StandIns = None


def read(path: Path, allow_unknown: bool = False, report: Report = lambda *_: None) -> Side:
    """Read a timeline: simulate a recipe (.toml), or read a timeline.json.gz of ours or a trace."""
    if path.suffix == ".toml":
        from sim.runs.run import run

        result = run(path, {"allow_unknown": True} if allow_unknown else None, report)
        return Side(result.timeline, result.lanes.stand_ins(result.job))
    from traces import reading
    from traces.own import perfetto

    if path.is_file():
        try:
            return Side(perfetto.read(path))
        except InputError:
            pass  # of somebody else
    return Side(reading.read([path], report=report).timeline)


def figures(of: Difference) -> dict[str, Any]:
    """Return the difference as JSON holds it."""
    there = [of.ops[f"op_{side}"] >= 0 for side in ("before", "after")]
    matched = there[0] & there[1]
    return {
        "before_s": of.before_s,
        "after_s": of.after_s,
        "difference_s": of.after_s - of.before_s,
        "waterfall_s": of.waterfall,
        "ops": {
            "matched": int(matched.sum()),
            "only_before": int((~there[1]).sum()),
            "only_after": int((~there[0]).sum()),
        },
        "ranks": {
            side: of.ops["rank"][one].nunique()
            for side, one in zip(("before", "after"), there, strict=True)
        },
        "changed": by_op(of.ops, MOST).to_dict("records"),
    }


def write_page(
    out: Path, names: tuple[str, str], timelines: tuple[Timeline, Timeline], found: dict[str, Any]
) -> Path:
    """Write both timelines on one axis, with the waterfall and the ops that changed."""
    from sim import report

    short = (Path(names[0]).name, Path(names[1]).name)
    shown = short if short[0] != short[1] else names
    return write_text(out / PAGE, report.of_difference(shown, timelines, found))


def cut(name: str) -> str:
    """Return the beginning of a kernel's long name.

    >>> len(cut("void " + "half, " * 40))
    48
    """
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


def _number(before: int, after: int) -> str:
    """Return how many there are before and after, or one number where it is the same.

    >>> _number(8, 8), _number(1024, 8)
    ('8', '1,024 / 8')
    """
    return f"{before:,}" if before == after else f"{before:,} / {after:,}"


def show(found: dict[str, Any], names: tuple[str, str]) -> None:
    """Print the waterfall, and which ops changed most."""
    before, difference = found["before_s"], found["difference_s"]

    def share(seconds: float) -> float | None:
        return seconds / before if before else None

    rows: list[tuple[str, str, float | None]] = [(names[0], f"{before:.6g}", None)]
    rows += [
        (WORDS.get(name, name.replace("_", " ")), f"{s:+.4g}", share(s))
        for name, s in found["waterfall_s"].items()
        if abs(s) >= units.LEAST
    ]
    rows += [(names[1], f"{found['after_s']:.6g}", share(difference))]
    tables.show(rows, "critical path", "seconds", ("of before", 2, "+.2 %"))
    changed = [row for row in found["changed"] if abs(row["change_s"]) >= units.LEAST]
    ranks = (found["ranks"]["before"], found["ranks"]["after"])
    alike, number = ranks[0] == ranks[1], _number(*ranks)
    ops_of = f"ops of {number} rank{'s' * (number != '1')}"
    if changed:
        tables.show(
            changed,
            (ops_of, lambda row: cut(str(row["name"]))),
            ("before / after", lambda row: _number(row["before"], row["after"])),
            ("before, s", "before_s", ".4g"),
            ("after, s", "after_s", ".4g"),
            ("change, s", "change_s", "+.4g"),
        )
    if not alike:
        tables.say("seconds of ops are sums over different numbers of ranks; with --set "
                   "simulation.fold=none a run simulates all ranks")  # fmt: skip
    ops = found["ops"]
    tables.say(
        f"{ops['matched']:,} ops are in both, {ops['only_before']:,} only before, "
        f"{ops['only_after']:,} only after"
        + ("" if ops["matched"] else "; none has its name in both, so compare causes, not ops")
    )
