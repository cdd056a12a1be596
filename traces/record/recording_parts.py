"""The sections of ``traincast record all``: what to record with a given number of GPUs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import schedules
from traces.record import load, parallel, pipelines, streams, sweep
from traces.record.plan import guarded

VIRTUAL: dict[str, pipelines.Seconds] = {"F": 0.010, "I": 0.010, "W": 0.010}
SPINS = {"F": 0.004, "I": 0.003, "W": 0.002}  # spin kernels keep time to the microsecond
PLANS = ("gpipe", "one_f_one_b", "interleaved_1f1b", "interleaved_zero_bubble", "zb_v",
         "dualpipe_v", "v_half")  # fmt: skip
GPU_BLOCKS: Sequence[dict[str, Any]] = (
    {"d": 2048, "seq": 2048, "mb": 1, "layers": 1, "heads": 16, "dtype": "bfloat16"},
    {"d": 4096, "seq": 4096, "mb": 1, "layers": 2, "heads": 32, "dtype": "bfloat16"},
)
CPU_BLOCKS: Sequence[dict[str, Any]] = ({"d": 64, "seq": 32, "mb": 1, "layers": 1, "heads": 4},)
CPU_MODEL = {"d": 64, "blocks": 2}
MODES = ("ddp", "fsdp2", "tp")


class RecordingPart(NamedTuple):
    """One part: its share of what is left of the budget, and what makes it."""

    name: str
    share: float
    make: Callable[[float], Any]  # given its seconds


def sections(folder: Path, command: str, gpus: int) -> Sequence[RecordingPart]:
    """Return what there is to record, the most valuable first."""
    wide, few = max(2, gpus), 10 if gpus else 3  # ranks; steps that really compute
    sizes = CPU_MODEL if gpus < 2 else {}
    rows: list[tuple[str, float, bool, Callable[[float], Any]]] = [
        ("kernels", 0.3, True, lambda s: sweep.record(sweep.WITHIN, 1, s / 2, s)),
        ("load", 0.4, gpus > 0, lambda s: sweep.record(load.PARTS, gpus, s * 0.8, s)),
        ("streams", 0.3, True, _on_streams),
        ("stage", 0.3, True, lambda s: _stages(folder, command, gpus, few, s)),
        ("one_gpu", 0.3, gpus > 0, lambda s: _trainings(folder, "one_gpu", command, 1, few, s, {})),
        ("transfers", 0.3, True, lambda s: sweep.record(sweep.BETWEEN, wide, s / 2, s)),
        ("pipelines", 0.6, True, lambda s: _virtual(folder, command, gpus, s)),
        ("parallel", 1.0, True, lambda s: _trainings(folder, ".", command, wide, few, s, sizes)),
    ]
    return [RecordingPart(name, share, make) for name, share, there, make in rows if there]


def _on_streams(seconds: float) -> dict[str, Any]:
    plans = {name: schedules.load(name)(4, 8) for name in PLANS}
    return streams.record(plans, SPINS, timeout=seconds)


def _stages(folder: Path, command: str, gpus: int, few: int, seconds: float) -> dict[str, Any]:
    """Record real stages on one rank; the second stage of ZB-V tells I from W."""
    blocks = GPU_BLOCKS if gpus else CPU_BLOCKS

    def of(number: int) -> list[dict[str, Any]]:
        ask = pipelines.PipelineOptions(
            steps=few, sizes=blocks[number], profile=bool(gpus), timeout=seconds / len(blocks)
        )
        return _pipelines(("one_f_one_b", "zb_v"), ask, 1, folder, f"stage{number}", command)

    return each({f"stage{number}": partial(of, number) for number in range(len(blocks))})


def _virtual(folder: Path, command: str, gpus: int, seconds: float) -> dict[str, Any]:
    ask = pipelines.PipelineOptions(VIRTUAL, fifo=gpus < 4, keep=3, timeout=seconds)
    names = PLANS if seconds > 90 else PLANS[:2]
    return {"runs": _pipelines(names, ask, 4, folder, ".", command)}


def _pipelines(
    names: Sequence[str],
    ask: pipelines.PipelineOptions,
    ranks: int,
    folder: Path,
    sub: str,
    command: str,
) -> list[dict[str, Any]]:
    """Record pipelines of eight microbatches; return the file and the times of each."""
    some = {name: schedules.load(name)(ranks, 8) for name in names}
    kept = ("noise", "device", "profiler", "memory")
    return [
        {"file": str(path.relative_to(folder))}
        | {key: facts[key] for key in kept if key in facts}
        | pipelines.spread(facts["step_ms_all"])
        for path, facts in pipelines.record(some, ask, folder / sub, command)
    ]


def _trainings(
    folder: Path, sub: str, command: str, ranks: int, steps: int, seconds: float,
    sizes: Mapping[str, int],
) -> dict[str, Any]:  # fmt: skip
    """Record steps of DDP, FSDP2 and TP with profiler traces; return file and times of each."""

    def of(mode: str) -> list[dict[str, Any]]:
        ask = parallel.ParallelOptions(
            ranks, steps, steps, timeout=seconds / len(MODES), sizes=sizes
        )
        made = parallel.record((mode,), folder / sub, command, ask)
        return [{"file": str(path.relative_to(folder)), **one} for path, one in made]

    return each({mode: partial(of, mode) for mode in MODES})


def each(parts: Mapping[str, Callable[[], list[dict[str, Any]]]]) -> dict[str, Any]:
    """Return the runs of all parts; one that fails leaves the others, and ``skipped`` says why.

    >>> each({"a": lambda: [{"file": "a"}], "b": lambda: [{}["c"]]})
    {'runs': [{'file': 'a'}], 'skipped': {'b': "KeyError: 'c'"}}
    """
    runs, skipped = list[dict[str, Any]](), dict[str, str]()
    for name, make in parts.items():
        with guarded(skipped, name):
            runs += make()
    return {"runs": runs, **({"skipped": skipped} if skipped else {})}
