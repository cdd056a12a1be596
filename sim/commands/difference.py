"""What ``traincast diff`` reads and shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape

from schedules._input_error import InputError
from sim.analysis.difference import Difference, by_op
from sim.commands import tables
from sim.files import write_text
from sim.timeline import Timeline

MOST = 12  # rows of ops
LETTERS = 48  # of an op's name
PAGE = "diff.html"


WORDS = {"lag": "gap before an op"}
"""Causes by the words of ``traincast analyze``."""


def read(path: Path, allow_unknown: bool = False) -> Timeline:
    """A timeline: of a recipe (.toml) simulated, of a timeline.json.gz of ours, or of a trace."""
    if path.suffix == ".toml":
        from sim.runs import run

        return run(path, {"allow_unknown": True} if allow_unknown else None).timeline
    from traces import perfetto, reading

    if path.is_file():
        try:
            return perfetto.read(path)
        except InputError:
            pass  # of somebody else
    return reading.read([path]).timeline


def figures(of: Difference) -> dict[str, Any]:
    """The difference as JSON holds it."""
    matched = (of.ops["op_before"] >= 0) & (of.ops["op_after"] >= 0)
    return {
        "before_s": of.before_s,
        "after_s": of.after_s,
        "difference_s": of.after_s - of.before_s,
        "waterfall_s": of.waterfall,
        "ops": {
            "matched": int(matched.sum()),
            "only_before": int((of.ops["op_after"] < 0).sum()),
            "only_after": int((of.ops["op_before"] < 0).sum()),
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
    """The beginning of a kernel's name that says all its types.

    >>> len(cut("void " + "half, " * 40))
    48
    """
    return name if len(name) <= LETTERS else name[: LETTERS - 1] + "…"


def show(found: dict[str, Any], names: tuple[str, str]) -> None:
    """Print the waterfall, and which ops changed most."""
    before, difference = found["before_s"], found["difference_s"]

    def share(seconds: float) -> str:
        return f"{seconds / before:+.2%}".replace("%", " %") if before else ""

    rows = [(escape(names[0]), f"{before:.6g}", "")]
    parts = found["waterfall_s"].items()
    rows += [(WORDS.get(name, name), f"{s:+.4g}", share(s)) for name, s in parts]
    rows += [(escape(names[1]), f"{found['after_s']:.6g}", share(difference))]
    tables.show(rows, "critical path", "seconds", "of before")
    cells = [
        (
            escape(cut(str(row["name"]))),
            f"{row['before']:,} / {row['after']:,}",
            f"{row['before_s']:.4g}",
            f"{row['after_s']:.4g}",
            f"{row['change_s']:+.4g}",
        )
        for row in found["changed"]
        if row["change_s"]
    ]
    heads = ("ops, all ranks", "before / after", "before, s", "after, s", "change, s")
    if cells:
        tables.show(cells, *heads)
    ops = found["ops"]
    tables.say(
        f"{ops['matched']:,} ops are in both, {ops['only_before']:,} only before, "
        f"{ops['only_after']:,} only after"
        + ("" if ops["matched"] else "; none has its name in both, so compare causes, not ops")
    )
