"""Run notebooks and write them back with what they show: ``python -m notebooks.refresh [NAME]``.

The same code gives the same bytes: cells carry no times, and pictures no stamps.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SECONDS = 120  # of one cell; more is a cell that hangs


def notebooks(*names: str) -> list[Path]:
    """List the notebooks beside this file, or those whose names begin with one of these.

    Raises ValueError if none begins with a name.
    """
    every = sorted(HERE.glob("*.ipynb"))
    for name in names:
        if not any(path.name.startswith(name) for path in every):
            raise ValueError(f"no notebook {name!r}; there are {', '.join(p.stem for p in every)}")
    return [path for path in every if not names or path.name.startswith(names)]


def executed(*paths: Path) -> dict[Path, Any]:
    """Run notebooks, two at a time; what one has become, or the exception that ended it."""

    async def each() -> list[Any]:
        gate = asyncio.Semaphore(2)
        return await asyncio.gather(*(_run(path, gate) for path in paths), return_exceptions=True)

    return dict(zip(paths, asyncio.run(each()), strict=True))


async def _run(path: Path, gate: asyncio.Semaphore) -> Any:
    """Run a notebook from top to bottom in a new kernel, in its own folder and with this code.

    Raises nbclient's CellExecutionError where a cell fails.
    """
    import nbformat  # seconds to load, and to list notebooks needs neither
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        extra_arguments=["--log-level=ERROR"],
        record_timing=False,  # else every run would write other bytes
        resources={"metadata": {"path": str(path.parent)}},
    )
    code = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with gate:
        await client.async_execute(env={**os.environ, "PYTHONPATH": code, "PYTHONHASHSEED": "0"})
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def main(names: list[str]) -> None:
    """Refresh those named, or all; nothing is written of one that fails."""
    import nbformat

    for path, notebook in executed(*notebooks(*names)).items():
        if isinstance(notebook, BaseException):
            raise notebook
        text = nbformat.writes(notebook) + "\n"
        part = path.with_suffix(".part")
        part.write_text(text)
        part.replace(path)
        print(f"{path.name}: {len(text) / 1024:.0f} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
