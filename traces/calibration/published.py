"""Reads the tables of published measurements that stand beside this file."""

from __future__ import annotations

import csv
from importlib.resources import files


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of ``NAME.csv`` by column, without its comments.

    >>> rows("nccl_tests")[0]["collective"]
    'all_reduce'
    """
    text = (files("traces.calibration") / f"{name}.csv").read_text(encoding="utf-8")
    return [*csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))]
