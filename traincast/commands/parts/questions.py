"""What ``traincast run`` is asked besides the step itself: what if, why so slow, what load adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sim.runs.run import Report, Result
from traincast.commands.parts import blame, explaining, what_ifs


class Question(NamedTuple):
    """One question: its key in JSON, its figures, and what shows and draws them."""

    key: str
    about: str  # what progress says
    figures: Callable[[Result, Report], Any]
    show: Callable[[Mapping[str, Any], Any], None]  # the summary, and the figures
    picture: str = ""
    draw: Callable[[Any, Path, str], Path] | None = None


def asked(what_if: Sequence[str], stragglers: bool, explain: bool) -> list[Question]:
    """Return the questions of these options."""
    edits, slow, load = (
        Question(
            "what_if",
            "what if",
            lambda result, _: what_ifs.figures(result, what_if),
            lambda summary, found: what_ifs.show(summary["step_time_s"], found),
        ),
        Question(
            "stragglers",
            "stragglers",
            blame.figures,
            lambda _, found: blame.show(found),
            blame.PICTURE,
            blame.draw,
        ),
        Question(
            "explain",
            "explain",
            explaining.of_run,
            lambda _, found: explaining.show(found),
            explaining.PICTURE,
            explaining.draw,
        ),
    )
    return [*[edits] * bool(what_if), *[slow] * stragglers, *[load] * explain]


def draw(some: Sequence[Question], found: Mapping[str, Any], out: Path, name: str) -> list[Path]:
    """Draw the figures that have a picture into a folder; return the files."""
    return [of.draw(found[of.key], out / of.picture, name) for of in some if of.draw]
