"""What several test files use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.builder.job import Job
from sim.builder.strategies.exchange import Policy
from sim.runs.schedule_run import plan_of
from tests.small import GPT, small
from traincast import main as cli

SHARED = Path(__file__).parents[2] / "shared"
collect_ignore = ["traces/record/cuda_double"]  # to import it is to put it into torch


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave benchmarks out unless ``-m`` speaks of them, which an ``-m`` of addopts could not."""
    if "benchmarks" in str(config.getoption("-m")):
        return
    apart = [item for item in items if item.get_closest_marker("benchmarks")]
    items[:] = [item for item in items if not item.get_closest_marker("benchmarks")]
    config.hook.pytest_deselected(items=apart)


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of measured data beside the project; a test that needs it skips without it."""
    if not (SHARED / "data").is_dir():
        pytest.skip("needs ../shared/data, the measured data beside the project, which is not here")
    return SHARED / "data"


@pytest.fixture
def traincast(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command; returns its exit code, standard output and standard error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            cli.main([str(argument) for argument in arguments])
        return (int(str(end.value.code)), *capsys.readouterr())

    return call


@pytest.fixture
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file of a module's RECIPE, beside the files of its BESIDE."""
    texts = {"recipe.toml": request.module.RECIPE, **getattr(request.module, "BESIDE", {})}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path / "recipe.toml"


@pytest.fixture(scope="session")
def small_job() -> Callable[..., Job]:
    """Makes a job of a GPT of 8 narrow layers; sizes as keywords, each by its name in its class."""

    def make(
        tp: int = 1,
        pp: int = 1,
        dp: int = 1,
        microbatches: int = 4,
        chunks: int = 1,
        schedule: str = "",
        policy: Policy | None = None,
        layers_per_stage: tuple[int, ...] = (),
        scatter_gather: bool = False,
        order: str = "tp-cp-ep-dp-pp",
        pair: str = "serial",
        **changes: object,
    ) -> Job:
        common = {"micro_batch": 3, "sequence": 32, "bucket_mb": 0.1}
        name = schedule or ("interleaved_1f1b" if chunks > 1 else "one_f_one_b")
        layers = int(changes.get("layers", GPT.layers))
        stages = pp * chunks
        keys = {
            "tp": tp, "pp": pp, "dp": dp, "order": order, "name": name, "pair": pair,
            "scatter_gather": scatter_gather,
            "layers_per_stage": layers_per_stage or (layers // stages,) * stages,
            "policy": policy or Policy("direction", paired=chunks > 1),
        }  # fmt: skip
        return small(GPT, common | keys | changes, plan_of(name, pp, microbatches, chunks))

    return make


class Kineto:
    """Writes small files in the format of PyTorch's profiler. Times are in microseconds."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def event(cat: str, name: str, ts: object, dur: object, tid: object = 100, **args: object):
        where = {"pid": 0 if cat.startswith(("kernel", "gpu", "Kernel", "Mem")) else 9, "tid": tid}
        return {"ph": "X", "cat": cat, "name": name, **where, "ts": ts, "dur": dur, "args": args}

    def call(self, name: str, ts: object, dur: object, correlation: int = 0, tid: object = 100):
        return self.event("cuda_runtime", name, ts, dur, tid, correlation=correlation)

    def kernel(self, name: str, ts: object, dur: object, correlation: int, stream=7, **args):
        more = {"device": 0, "stream": stream, "correlation": correlation, **args}
        return self.event("kernel", name, ts, dur, stream, **more)

    def launched(self, name: str, at: int, ts: int, dur: int, correlation: int, stream=7, **args):
        """A call at ``at`` that takes 5 us, and the kernel that it launches."""
        kernel = self.kernel(name, ts, dur, correlation, stream, **args)
        return [self.call("cudaLaunchKernel", at, 5, correlation), kernel]

    def posted(self, name: str, ts: object, dur: object, tid: object = 100, **args: object):
        """The host's side of a collective."""
        more = {"Collective name": name, **args}
        return self.event("cpu_op", "record_param_comms", ts, dur, tid, **more)

    def write(self, events: list, rank: int | None = 0, name: str = "", **facts: object) -> Path:
        """The file; without ``rank`` it has no distributedInfo. ``facts`` stand at its end."""
        info = {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": 2}}
        path = self.folder / (name or f"rank{rank or 0}.json")
        head = {"schemaVersion": 1, "deviceProperties": [], **info}
        path.write_text(json.dumps({**head, "traceEvents": events, **facts}, indent=2))
        return path


@pytest.fixture
def kineto(tmp_path: Path) -> Kineto:
    """Makes and writes events of PyTorch's profiler."""
    return Kineto(tmp_path)
