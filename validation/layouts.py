"""Compares the layout that we would choose for a job with the fastest that others measured.

``python -m validation.layouts`` prints the page ``validation/layouts.md``. It reads jobs that ran
in four layouts or more, which stand beside the project (see :mod:`validation.layouts_measured`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from statistics import median

from joblib import Parallel, delayed

from schedules.input_error import InputError
from sim.table import Table, markdown, table
from validation import layouts_measured as measured
from validation.figures import step
from validation.layouts_judged import Compared, mean
from validation.layouts_measured import FEWEST, Job, Layout

SEED, DRAWN = 0, 6  # jobs of nanotron's, of which some layouts take seconds to simulate
LARGE = 0.03
"""The regret from which a job is listed."""
SOURCES: dict[str, Callable[[], list[Job]]] = {
    "vTrain, one node": partial(measured.vtrain, "single"),
    "vTrain, several nodes": partial(measured.vtrain, "multi"),
    "nanotron on H100": lambda: Random(SEED).sample(measured.nanotron(), DRAWN),
    "BigScience": measured.bloom,
}

PAGE = """# The choice among measured layouts

Written by `python -m validation.layouts > validation/layouts.md`: jobs that others ran in {fewest}
layouts or more, each with one model, number of GPUs, global batch, sequence and precision. Every
layout of every such job is simulated, but for nanotron, of whose {all} jobs {drawn} are drawn with
seed {seed}, as they take longest. Our choice is the layout with the shortest simulated step; its
regret is by what share its measured step is longer than that of the layout measured fastest. Where
a layout ran more than once, its time is the median. Nothing is fitted to these times.

{table}

The columns "at random" are what a layout drawn at random costs in the mean, and how often three
drawn at random hold the best. Regrets and rank correlations (Spearman's, of the layouts of a job)
are medians over jobs, but for the largest.

- vTrain (Megatron-DeepSpeed, A100) and BigScience (384 A100 of Jean Zay, before BLOOM) are
  simulated with the recipes of [their tables](results.md), `recipes/vtrain_gpt.toml` and
  `recipes/bloom_176b.toml`. Rows of BigScience without layers or seconds are left out.
- nanotron's rows are those of Hugging Face's ultra-scale sweep after the repair of its pipelines,
  from a secondary source. Recipes are those of the [memory page](memory.md), on `aws_p5`, with
  batched messages and a host as with PyTorch's modules (`host = "eager"`), which are assumed.
- Megatron-Bridge's tables have at most {bridge} layouts of one job, so none is compared,
  even with the rows of all its versions taken together.

Where the choice is wrong:

- On one node nearly always where the batch is 16 or less. There a step has few microbatches, and we
  are a tenth too slow without a pipeline, but right with four stages. Eight of the 24 choices below
  have more stages than the fastest.
- On several nodes of vTrain, most layouts with tp 2 or 4 and 16 replicas or more took 8 to 25 %
  longer than simulated, but those with tp 8 only 1 % in the median. Several groups of replicas
  share the ports of a node there.
- With BigScience our choice is worse than one at random. A micro-batch of 1 or 2 took 3 to 61 %
  longer there than simulated, one of 4 or 8 took 6 to 21 % longer. The runs had
  CUDA_LAUNCH_BLOCKING=1, which is not simulated.
- nanotron's steps on 64 GPUs and more took 2.4 to 5.9 times as long as simulated (medians of a
  job), single ones over 80 times. The sweep's own all-reduces reach 458 GB/s on 8 GPUs, but 94 on
  64 and 26 on 256 (medians), far below what `aws_p5` has. The ports are not set from them.

Jobs with a regret of {large:.0%} or more:

{worst}
"""


def predicted(layout: Layout) -> float | None:
    """Return the simulated seconds of a step; None for a layout that is refused."""
    try:
        return step(layout.recipe())
    except InputError:
        return None


def compared(jobs: Sequence[Job]) -> list[Compared]:
    """Simulate all layouts of jobs, on all CPUs; leave out those that are refused."""
    every = [layout for job in jobs for layout in job.layouts]
    found = iter(Parallel(n_jobs=-1)(delayed(predicted)(layout) for layout in every))
    out = []
    for job in jobs:
        some = [(of, seconds) for of, seconds in zip(job.layouts, found, strict=False) if seconds]
        columns = [of.name for of, _ in some], [of.seconds for of, _ in some]
        out.append(Compared(job.name, *columns, [seconds for _, seconds in some]))
    return out


def page(found: Mapping[str, Sequence[Compared]], everything: int, bridge: int) -> str:
    """Return the page, of the jobs of each source; ``everything`` are nanotron's jobs."""
    some = [(name, of) for name, jobs in found.items() for of in jobs if of.regret >= LARGE]
    worst = table(
        sorted(some, key=lambda pair: (pair[0], -pair[1].regret)),
        ("of", 0), ("job", lambda pair: pair[1].job),
        ("ours", lambda pair: pair[1].names[pair[1].choice]),
        ("fastest", lambda pair: pair[1].names[pair[1].best]),
        ("regret", lambda pair: pair[1].regret, ".1 %"),
    )  # fmt: skip
    return PAGE.format(
        fewest=FEWEST, all=everything, drawn=DRAWN, seed=SEED, bridge=bridge, large=LARGE,
        table=markdown(_sources(found)), worst=markdown(worst),
    )  # fmt: skip


def _sources(found: Mapping[str, Sequence[Compared]]) -> Table:
    """Return a line for each source."""
    return table(
        list(found.items()),
        ("source", 0), ("jobs", lambda row: len(row[1])),
        ("layouts", lambda row: sum(len(of.names) for of in row[1])),
        ("regret", lambda row: median(of.regret for of in row[1]), ".1 %"),
        ("at random", lambda row: median(of.blind for of in row[1]), ".1 %"),
        ("largest", lambda row: max(of.regret for of in row[1]), ".1 %"),
        ("top three hold the best", lambda row: mean([of.holds for of in row[1]]), ".0 %"),
        ("at random ", lambda row: mean([of.chance for of in row[1]]), ".0 %"),
        ("rank correlation", lambda row: median(of.rank for of in row[1]), ".2f"),
    )  # fmt: skip


def main() -> None:
    """Print the page."""
    found = {name: compared(jobs()) for name, jobs in SOURCES.items()}
    print(page(found, len(measured.nanotron()), measured.bridge()), end="")


if __name__ == "__main__":
    main()
