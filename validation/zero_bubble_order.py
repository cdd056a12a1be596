"""Compares which pipeline schedule is faster, and by how much, with the zero-bubble authors' runs.

``python -m validation.zero_bubble_order`` prints the page ``validation/zero_bubble_order.md``. It
reads the samples per second beside the project (``../shared/data/published/zero_bubble.json``):
tables 4, 6, 7 and 10 to 12 of Qi et al. 2023 (arXiv:2401.10241), GPT on 8 to 32 A100.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from math import fsum
from pathlib import Path
from typing import Any, NamedTuple

from joblib import Parallel, delayed

from sim.runs.run import run
from sim.table import markdown, table

ROWS = Path(__file__).parents[2] / "shared" / "data" / "published" / "zero_bubble.json"
RECIPE = Path(__file__).parent / "recipes" / "zero_bubble_14.6b_1f1b.toml"
SCHEDULES = {
    "1f1b": "one_f_one_b",
    "interleaved_1f1b": "interleaved_1f1b",
    "zb-1p": "zb_1p",
    "zb-2p": "zb_2p",
    "zb-v": "zb_v",
}
DIFFERS = 0.03  # relative; rates are printed with two or three digits

PAGE = """# Which pipeline schedule is faster

Written by `python -m validation.zero_bubble_order > validation/zero_bubble_order.md`, from {rows}
rows of Qi et al. 2023 (arXiv:2401.10241), tables 4, 6, 7 and 10 to 12: GPT on 8 to 32 A100. Two
rows are compared if they have table, model, ranks, microbatches and micro-batch in common. Messages
run as the authors' programs send them (`p2p = "auto"`). Zero-bubble rows check the gradient norm
after the update (`clip = "post"`), but for the one that the paper says to be synchronised; 1F1B
rows do not. Assumed as in `recipes/zero_bubble_14.6b_1f1b.toml`: vocabulary 32,000, tied embedding,
unfused attention, 25 GB/s of network per GPU. Nothing is fitted to these rates.

- Of {differing} pairs whose rates differ by 3 % or more, {right} are in the measured order.
- The speed-up over 1F1B is off by {off:.1f} points in the mean of {speedups} pairs
  ({bias:+.1f} with its sign), at most {worst:.1f}.
- Rates themselves are off by {rate:+.1f} % in the mean.

{table}

{wrong}"""


class Rate(NamedTuple):
    """A row: what it may be compared with, its schedule, and samples per second and GPU."""

    key: tuple[str, str, int, int, int]  # table, model, ranks, microbatches, micro-batch
    schedule: str
    measured: float
    predicted: float


class Pair(NamedTuple):
    """Two rows that differ in their schedule, the one that was measured faster first."""

    fast: Rate
    slow: Rate

    @property
    def measured(self) -> float:
        """By what share the first is faster, as measured."""
        return self.fast.measured / self.slow.measured - 1

    @property
    def predicted(self) -> float:
        """By what share it is predicted to be faster."""
        return self.fast.predicted / self.slow.predicted - 1

    @property
    def error(self) -> float | None:
        """The error in points of the speed-up over 1F1B, if one of the two is 1F1B."""
        if self.slow.schedule == "1f1b":
            return 100 * (self.predicted - self.measured)
        if self.fast.schedule == "1f1b":
            return 100 * (1 / (1 + self.predicted) - 1 / (1 + self.measured))
        return None


def overrides(row: Mapping[str, Any]) -> dict[str, object]:
    """Return the recipe's keys for a row; the ends of the pipeline have one layer less."""
    split, schedule = row["parallelism"], row["schedule"]
    stages = split["pp"] * split["vp"]
    layers = (row["model"]["layers"] + 2) // stages
    return {
        "model.preset": row["model"]["name"].lower().replace(" ", "-"),
        "cluster.gpus": split["pp"],
        "parallelism.pp": split["pp"],
        "parallelism.p2p": "auto",
        "schedule.name": SCHEDULES[schedule],
        "schedule.chunks": split["vp"] if schedule == "interleaved_1f1b" else None,
        "schedule.layers_per_stage": [layers - 1, *[layers] * (stages - 2), layers - 1],
        "training.micro_batch": row["micro_batch"],
        "training.global_batch": row["global_batch"],
        "training.clip": "post" if _checks_later(row) else True,
    }


def _checks_later(row: Mapping[str, Any]) -> bool:
    """Return whether a row ran with the authors' optimizer post-validation."""
    return row["schedule"].startswith("zb") and "all-reduce" not in row["notes"]


def rate(row: Mapping[str, Any]) -> Rate:
    """Simulate a row."""
    seconds = run(RECIPE, overrides(row)).summary["step_time_s"]
    predicted = row["global_batch"] / seconds / row["parallelism"]["pp"]
    measured = row["measured"]["samples_per_s_per_gpu"]
    return Rate(_key(row), row["schedule"], measured, predicted)


def _key(row: Mapping[str, Any]) -> tuple[str, str, int, int, int]:
    name = row["source"]["table_or_section"].split()[1]
    microbatches = row["global_batch"] // row["micro_batch"]
    ranks = row["parallelism"]["pp"]
    return name, row["model"]["name"], ranks, microbatches, row["micro_batch"]


def compared(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that have another to be compared with."""
    count = Counter(map(_key, rows))
    return [row for row in rows if count[_key(row)] > 1]


def pairs(rates: Sequence[Rate]) -> Iterator[Pair]:
    """Yield every two rows that may be compared."""
    alike = defaultdict[object, list[Rate]](list)
    for one in rates:
        alike[one.key].append(one)
    for group in alike.values():
        for two in combinations(group, 2):
            slow, fast = sorted(two, key=lambda of: of.measured)
            yield Pair(fast, slow)


def page(rates: Sequence[Rate]) -> str:
    """Return the page."""
    found = [*pairs(rates)]
    differing = [pair for pair in found if pair.measured >= DIFFERS]
    wrong = [pair for pair in differing if pair.predicted <= 0]
    errors = [pair.error for pair in found if pair.error is not None]
    lines = table(
        found,
        ("table", lambda of: of.fast.key[0]), ("model", lambda of: of.fast.key[1]),
        ("ranks", lambda of: of.fast.key[2]),
        ("microbatches", lambda of: of.fast.key[3]), ("micro-batch", lambda of: of.fast.key[4]),
        ("faster", "fast/schedule"), ("than", "slow/schedule"),
        ("measured", "measured", "+.1 %"), ("predicted", "predicted", "+.1 %"),
    )  # fmt: skip
    return PAGE.format(
        rows=len(rates),
        differing=len(differing),
        right=len(differing) - len(wrong),
        off=fsum(map(abs, errors)) / len(errors),
        bias=fsum(errors) / len(errors),
        worst=max(map(abs, errors)),
        speedups=len(errors),
        table=markdown(lines),
        wrong="".join(map(_wrong, wrong)),
        rate=100 * fsum(of.predicted / of.measured - 1 for of in rates) / len(rates),
    )


def _wrong(pair: Pair) -> str:
    _, model, ranks, microbatches, _ = pair.fast.key
    return (
        f"In the wrong order: {pair.fast.schedule} and {pair.slow.schedule} of {model} on {ranks} "
        f"ranks with {microbatches} microbatches.\n"
    )


def main() -> None:
    """Print the page."""
    rows = compared(json.loads(ROWS.read_text()))
    print(page(Parallel(n_jobs=-1)(delayed(rate)(row) for row in rows)), end="")


if __name__ == "__main__":
    main()
