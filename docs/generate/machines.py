"""The machines that come along: what each is, and on which one its constants were measured."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

import topologies
from sim.machine import cluster
from sim.machine.provenance import KERNELS
from sim.table import markdown, table

HEAD = ["shipped", "machine", "kernels", "collectives inside a node"]
FOLDER = Path(topologies.__file__).parent


def text() -> str:
    """Return a row for each topology: name, machine, and whose constants it has."""
    return markdown(table(map(row, topologies.names()), *HEAD, left=True))


def row(name: str) -> list[str]:
    """Return the cells of a topology."""
    borrowed = cluster.load(name, 1).borrowed
    return [f"`{name}`", about(name), *(whose(borrowed, of) for of in (KERNELS, ("collectives",)))]


def about(name: str) -> str:
    """Return the first sentence of the comment on top of a topology's file.

    >>> about("dgx_b200")
    'DGX B200: 8 B200 on NVSwitch, one 400 Gb/s port per GPU'
    """
    lines = (FOLDER / f"{name}.toml").read_text(encoding="utf-8").splitlines()
    comment = " ".join(line[2:] for line in takewhile(lambda line: line.startswith("# "), lines))
    return comment.partition(". ")[0].rstrip(".")


def whose(borrowed: Mapping[str, str], families: tuple[str, ...]) -> str:
    """Return the topology whose constants these families have.

    >>> whose({"gemm": "dgx_h100"}, ("gemm", "attention")), whose({}, ("gemm",))
    ('as `dgx_h100`', 'measured')
    """
    of = dict.fromkeys(borrowed[name] for name in families if name in borrowed)
    return f"as {', '.join(f'`{name}`' for name in of)}" if of else "measured"
