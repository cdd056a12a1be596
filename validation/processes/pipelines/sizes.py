"""Reads how message sizes count, from a sweep of messages between two ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from schedules.input_error import InputError
from validation.processes.pipelines.costs import Size


def sizes(path: Path) -> list[Size]:
    """Return how much longer larger messages take, from a file of a p2p sweep.

    Raises InputError for a file that is none.
    """
    try:
        rows = sorted(json.loads(path.read_text(encoding="utf-8")), key=lambda row: row["bytes"])
        keys = ("oneway_preposted_us", "isend_post_us")
        # no larger message is faster: small differences among small ones are noise
        wire, copy = (np.maximum.accumulate([float(row[key]) for row in rows]) for key in keys)
        return [
            Size(float(row["bytes"]), float(w - wire[0]) / 1e6, float(c - copy[0]) / 1e6)
            for row, w, c in zip(rows, wire, copy, strict=True)
        ]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path} holds no sweep of messages: {error!r}") from error
