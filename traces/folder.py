"""The files of a run, as ``traincast run --out`` writes them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from sim import config, plots
from sim.analysis.memory import curves
from sim.files import replacing, replacing_folder, write_text
from sim.runs import Result
from traces import hta, perfetto
from traces.chrome import Written

Report = Callable[[str, int, int], object]
"""Called with what is being written, and how much of it is done of how much."""


class Files(NamedTuple):
    """What was written."""

    paths: tuple[Path, ...]
    traced: Written  # ranks and ops in the trace files


def write(
    result: Result,
    out: Path,
    ranks: Sequence[int] | None = None,
    window: tuple[float, float] | None = None,
    report: Report = lambda *_: None,
) -> Files:
    """Write summary, Perfetto file, a file per rank, pictures and the complete recipe.

    ``ranks`` and ``window`` (seconds) select what the traces hold; without ``ranks`` one of over
    300,000 ops holds the first, middle and last pipeline stage. The same result gives the same
    bytes: how long the simulation took is left out of the summary.
    """
    timeline = result.timeline
    summary = copy.deepcopy(result.summary)
    summary["simulation"]["wall_s"] = None
    paths = [
        write_text(out / "summary.json", json.dumps(summary, indent=2) + "\n"),
        write_text(out / "recipe.toml", config.dump(result.recipe)),
    ]

    def progress(what: str) -> Callable[[int, int], object]:
        return lambda done, of: report(what, done, of)

    with _replaced(out / "timeline.json.gz", paths) as path:
        traced = perfetto.write(
            timeline, path, ranks=ranks, window=window, progress=progress("timeline.json.gz")
        )
    with replacing_folder(out / "traces") as folder:
        hta.write_rank_files(
            timeline, folder, ranks=ranks, window=window, progress=progress("traces")
        )
    paths.append(out / "traces")
    report("pictures", 0, 0)
    title = f"{result.recipe.model.name}: one step of {timeline.seconds:.4g} s"
    with _replaced(out / "timeline.png", paths) as path:
        plots.save(plots.timeline(timeline, ranks=ranks, window=window, title=title), path)
    with _replaced(out / "memory.png", paths) as path:
        capacity = result.cluster.gpu.memory
        plots.save(plots.memory(curves(timeline), capacity=capacity, title=title), path)
    return Files(tuple(paths), traced)


@contextmanager
def _replaced(path: Path, paths: list[Path]) -> Iterator[Path]:
    with replacing(path) as temporary:
        yield temporary
    paths.append(path)
