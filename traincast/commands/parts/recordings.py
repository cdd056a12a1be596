"""What a recorded run shows: ranks, links, shares of time, and which ranks keep others waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from schedules.input_error import InputError
from sim import units
from sim.analysis.breakdown import breakdown
from sim.analysis.collectives import collectives
from sim.analysis.idle import bubble, idle
from sim.analysis.lateness import Lateness, lateness
from sim.analysis.path import by_cause, by_straggler, path
from sim.analysis.shares import shares
from sim.files import locks, staging, target
from sim.timeline import Timeline
from traces.recording import Recording
from traincast.commands.parts import output
from traincast.commands.parts.figures import Figures

Writer = Callable[[Timeline, Path], object]
PAGE = "report.html"
_OVERLAP = ("waiting", "moving", "exposed", "exposed_waiting", "hidden")


def writer(name: str) -> Writer:
    """Return the function that writes a timeline in a format.

    Raises InputError for an unknown format.
    """
    from traces.chakra import write as chakra
    from traces.own import perfetto

    writers: dict[str, Writer] = {"perfetto": perfetto.write, "chakra": chakra.write}
    if name not in writers:
        raise InputError(f"--to: cannot write {name!r}; there are {', '.join(writers)}")
    return writers[name]


def convert(recording: Recording, name: str, path: Path) -> list[Path]:
    """Write the recording's timeline; in Chakra's format as a folder with a file per rank."""
    write = writer(name)
    if name == "chakra":
        with staging(path) as made:
            write(recording.timeline, made)
            path.mkdir(parents=True, exist_ok=True)
            with locks.turn(path), locks.uninterrupted():
                for file in sorted(made.iterdir()):
                    file.replace(target(path / file.name))
        return [path]
    with output.replacing(path) as temporary:
        write(recording.timeline, temporary)
    return [path]


def draw(recording: Recording, traces: Sequence[Path], file: Path) -> None:
    """Draw the timeline with its critical path."""
    from sim import plots

    title = f"{_called(traces)}: recorded run of {units.seconds(recording.timeline.seconds)}"
    picture = plots.timeline(recording.timeline, path=path(recording.timeline), title=title)
    output.draw(picture, file)


def write_page(out: Path, traces: Sequence[Path], recording: Recording, found: Figures) -> Path:
    """Write the page of a recording."""
    from sim import report

    text = report.of_recording(_called(traces), recording.timeline, found)
    return output.write_text(out / PAGE, text)


def _called(traces: Sequence[Path]) -> str:
    """Return the name of the first file, and how many more there are.

    >>> _called([Path("out/rank0.json"), Path("out/rank1.json")])
    'rank0.json and 1 more'
    """
    return f"{traces[0].name}{f' and {len(traces) - 1} more' if len(traces) > 1 else ''}"


def figures(recording: Recording) -> dict[str, Any]:
    """Return all that ``analyze --json`` prints."""
    from traces.replay.slowdown import slowdown

    timeline = recording.timeline
    return {
        "format": recording.format,
        "ranks": timeline.graph.ranks().tolist(),
        "span_s": timeline.seconds,
        **recording.counts,
        "steps": _steps(recording),
        "per_rank": [row._asdict() for row in shares(timeline)],
        "critical_path": _path(recording),
        "bubble": asdict(bubble(idle(timeline))),
        "overlap": _overlap(timeline),
        "collective_groups": collectives(timeline).to_dict("records"),
        "stragglers": {**slowdown(recording), **_late(lateness(timeline))},
        "clocks": _clocks(recording),
        "warnings": list(recording.warnings),
    }


def _steps(recording: Recording) -> list[dict[str, Any]]:
    """Return the first start and the last end of each step, as far as it was read."""
    timeline, step = recording.timeline, recording.timeline.graph.step
    out = []
    for k in np.unique(step).tolist():
        mine = step == k
        begin, end = float(timeline.start[mine].min()), float(timeline.end[mine].max())
        number = recording.steps[k] if recording.steps else k
        out.append({"step": number, "start_s": begin, "seconds": end - begin})
    return out


def _path(recording: Recording) -> dict[str, Any]:
    """Return the critical path by cause; of a profiler's trace with the host's share apart."""
    if recording.operators:
        from traces.replay.host_path import host_path

        told = host_path(recording)
        split = {"span_s": told.span, "length_s": told.length, "by_cause_s": dict(told.seconds)}
    else:
        seconds = recording.timeline.seconds
        causes = by_cause(path(recording.timeline), stragglers=False)
        split = {"span_s": seconds, "length_s": seconds, "by_cause_s": causes}
    waits = by_straggler(path(recording.timeline))
    return {**split, "by_straggler_s": {str(rank): s for rank, s in waits.items()}}


def _overlap(timeline: Timeline) -> list[dict[str, Any]]:
    """Return the mean over ranks of each dimension, as ``summary.json`` counts it."""
    of = breakdown(timeline)
    return [
        {"dimension": name, **{f"{key}_s": of.mean(getattr(of, key)[name]) for key in _OVERLAP}}
        | {"hidden_share": of.hidden_share(name)}
        for name in sorted(of.total)
    ]


def _late(late: Lateness) -> dict[str, Any]:
    """Return which ranks come last, and which wait."""
    columns = zip(late.ranks.tolist(), late.waits, late.causes, late.last, strict=True)
    return {
        "worst": late.worst,
        "per_rank": [
            {"rank": r, "waits_s": float(w), "caused_s": float(c), "came_last": int(n)}
            for r, w, c, n in columns
        ],
    }


def _clocks(recording: Recording) -> dict[str, Any]:
    return {
        "offset_s": {str(rank): s for rank, s in recording.clock_offsets.items()},
        "drift": {str(rank): s for rank, s in recording.clock_drifts.items()},
        "residual_s": recording.clock_residual,
    }
