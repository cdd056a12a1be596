"""How far prices of kernels are off: ``python -m validation.residuals`` writes it down.

It reads the errors of fits in ``calibration.md`` and writes ``sim/machine/residuals.toml``. A
family's own error is the root mean square of the biases on rows that were held out, over all GPUs:
each such set of rows counts once. A family without held-out rows takes that of all sets together.
The error of a shape is the scatter of the rows that were fitted: for normal errors the standard
deviation is sqrt(pi / 2) times the mean |error|. Held out too, but not counted, are prefill kernels
of inference, which also fill a cache, and Alps, a network of another kind. On a chip that borrows
the constants of another one a family is off by what :mod:`validation.transfer` finds besides. No
step time goes in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import fsum, pi, sqrt
from pathlib import Path
from typing import NamedTuple

import sim.machine
from sim.machine.kernels import MEMORY_KINDS, VARIANTS
from validation.transfer import KERNELS, transfer

PAGE = Path(__file__).parent / "calibration.md"
TABLE = Path(sim.machine.__file__).parent / "residuals.toml"
COMMAND = "python -m validation.residuals"

_KERNELS = "|".join((*MEMORY_KINDS, *VARIANTS))
_INSIDE = "(all_reduce|all_gather|reduce_scatter|all_to_all)( in-switch)?, (simple|low latency)"
_NODES = "(all_reduce|all_gather|reduce_scatter): (?!.*(Alps|without trees)).*"
_ATTENTION = "check, attention (?!.*inference).*"
FAMILIES: dict[str, tuple[str, str]] = {
    "gemm": (
        "gemm bf16|weight gradient added in fp32",
        "check, gemm: (?!.*fp8).*|gemm bf16: .*check.*",
    ),
    "gemm_fp8": ("gemm fp8", "check, gemm: .*fp8.*"),
    "attention": ("attention .*, (forward|both)", _ATTENTION),
    "attention_backward": ("attention .*, (backward|both)", _ATTENTION),
    "memory_kernels": (_KERNELS, f"check, ({_KERNELS}).*"),
    "collectives": (_INSIDE, f"check, {_INSIDE}.*"),
    "collectives_between_nodes": (_NODES, f"check, {_NODES}"),
    "p2p": (_INSIDE, "check, p2p: .*"),
    "p2p_between_nodes": (_NODES, "check, p2p between.*"),
}
"""By family: which rows of the page were fitted, and which were held out. p2p was taken from a
table without rows to compare; its shapes scatter as those of collectives."""


BORROWED = {name: name for name in (*KERNELS, "collectives")}
BORROWED |= {"gemm_fp8": "gemm", "p2p": "collectives"}
"""By family: what it is off like where its constants are those of another chip."""


class Row(NamedTuple):
    """A line of the page: GPU, what was compared, how many rows, mean |error| and bias."""

    gpu: str
    what: str
    rows: int
    mean: float
    bias: float


def read(text: str) -> list[Row]:
    """Return the lines of a page of calibration; the same kernels on several GPUs count once."""
    found = re.findall(
        r"^\| (\w+) \| (.+?) \| (\d+) \| ([\d.]+) % \| (-?[\d.]+) % \|", text, re.MULTILINE
    )
    rows = [
        Row(gpu, what, int(n), float(mean) / 100, float(bias) / 100)
        for gpu, what, n, mean, bias in found
    ]
    return list({row[1:]: row for row in reversed(rows)}.values())[::-1]


def fitted(rows: Iterable[Row], which: str) -> float:
    """Return the standard deviation of a shape; a row that was read off itself says nothing.

    >>> round(fitted([Row("a", "x", 9, 0.08, 0.0), Row("a", "x", 1, 0.0, 0.0)], "x"), 4)
    0.1003
    """
    return _square(
        row.mean * sqrt(pi / 2) for row in rows if row.rows > 1 and re.fullmatch(which, row.what)
    )


def held_out(rows: Iterable[Row], which: str) -> float:
    """Return the standard deviation of a family, 0 where no rows were held out.

    >>> held_out([Row("a", "check", 9, 0.1, -0.06), Row("b", "check", 9, 0.1, 0.08)], "check")
    0.07071067811865475
    """
    return _square(row.bias for row in rows if re.fullmatch(which, row.what))


def _square(of: Iterable[float]) -> float:
    found = [one * one for one in of]
    return sqrt(fsum(found) / len(found)) if found else 0.0


def table(text: str) -> str:
    """Return the table of all families, as it stands in ``residuals.toml``."""
    rows = read(text)
    every = held_out(rows, "|".join(f"({held})" for _, held in FAMILIES.values()))
    out = [
        f"# Errors of prices, standard deviations of log time. Made by `{COMMAND}` from",
        "# validation/calibration.md. family: of all its kernels, from rows held out (all rows",
        "# held out, where it has none of its own); shape: of each by itself, from rows fitted.",
    ]
    for name, (of_shapes, held) in FAMILIES.items():
        family = held_out(rows, held) or every
        shape = fitted(rows, of_shapes)
        out += ["", f"[{name}]", f"family = {family:.3f}", f"shape = {shape:.3f}"]
        if name in BORROWED:
            out.append(f"borrowed = {transfer(BORROWED[name]):.3f}")
    return "\n".join(out) + "\n"


def main() -> None:
    """Write the table."""
    TABLE.write_text(table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
