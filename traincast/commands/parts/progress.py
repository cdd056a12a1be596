"""A progress bar on standard error for work that takes longer than a moment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer

Report = Callable[[str, int, int], None]
"""A function of (what is being done, how much is done, of how much); 0 of 0 if that is unknown."""

MOMENT = 1.0  # seconds before a bar appears


@contextmanager
def progress() -> Iterator[Report]:
    """Yield a function to report to; a bar appears when the work takes longer than a moment."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("", total=None)
    timer = Timer(MOMENT, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield lambda what, done, of: bar.update(
            task, description=what, completed=done, total=of or None
        )
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
