"""Runs orders in torch's own pipelining runtime, a process per rank over gloo, on the CPU.

    python run_in_torch.py FOLDER RANKS NAME...

Each NAME.csv in FOLDER (with messages where NAME ends in .comms) becomes a pipeline of tiny stages;
what each rank has run is written to FOLDER as NAME.RANK.json, with how far its gradients are from
those of plain autograd.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

WIDTH, ROWS = 4, 2  # of a stage, and of a microbatch


def main(rank: int, folder: Path, ranks: int, names: list[str]) -> None:
    """What one process does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    init = f"file://{folder}/rendezvous"
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=ranks)
    for name in names:
        ran, error = run(folder / f"{name}.csv", rank)
        (folder / f"{name}.{rank}.json").write_text(json.dumps({"ran": ran, "error": error}))
    dist.barrier()
    dist.destroy_process_group()


def run(path: Path, rank: int) -> tuple[list[str], float]:
    """The steps that a rank has run, in order, and the largest error of a gradient."""
    import torch
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    log: list[str] = []

    class Recorded(PipelineStage):
        """A stage that writes down what it is asked to run."""

        def forward_one_chunk(self, m, *args, **kwargs):
            log.append(f"{self.stage_index}F{m}")
            return super().forward_one_chunk(m, *args, **kwargs)

        def backward_one_chunk(self, m, *args, full_backward=True, **kwargs):
            log.append(f"{self.stage_index}{'B' if full_backward else 'I'}{m}")
            return super().backward_one_chunk(m, *args, full_backward=full_backward, **kwargs)

        def backward_weight_one_chunk(self, m, *args, **kwargs):
            log.append(f"{self.stage_index}W{m}")
            return super().backward_weight_one_chunk(m, *args, **kwargs)

    lines = path.read_text().splitlines()
    steps = re.findall(r"(\d+)F(\d+)", path.read_text())
    stages, microbatches = (1 + max(int(step[k]) for step in steps) for k in (0, 1))
    mine = sorted({int(stage) for stage, _ in re.findall(r"(\d+)F(\d+)", lines[rank])})
    held = [Recorded(layer(s), s, stages, torch.device("cpu")) for s in mine]
    schedule = _PipelineScheduleRuntime(held, microbatches, loss_fn=torch.nn.functional.mse_loss)
    communicating = path.name.endswith(".comms.csv")
    schedule._load_csv(str(path), "compute_comms" if communicating else "compute_only")
    torch.manual_seed(0)
    x, target = torch.rand(2, microbatches * ROWS, WIDTH)
    inputs = [x] if 0 in mine else []
    schedule.step(*inputs, target=target if stages - 1 in mine else None, losses=[])
    expected = gradients(stages, x, target)
    error = max(
        float((p.grad - q).abs().max())
        for stage in held
        for p, q in zip(stage.submod.parameters(), expected[stage.stage_index], strict=True)
    )
    return log, error


def layer(stage: int):
    """The same weights for a stage in every process."""
    import torch

    torch.manual_seed(stage + 1)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())


def gradients(stages: int, x, target):
    """The same model in one piece and one batch: a mean over rows is a mean over microbatches."""
    import torch

    layers = [layer(stage) for stage in range(stages)]
    torch.nn.functional.mse_loss(torch.nn.Sequential(*layers)(x), target).backward()
    return [[p.grad for p in one.parameters()] for one in layers]


if __name__ == "__main__":
    import torch.distributed.pipelining  # once: ranks are forks of this process
    import torch.multiprocessing

    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    torch.multiprocessing.start_processes(
        main, (folder, ranks, sys.argv[3:]), nprocs=ranks, start_method="fork"
    )
