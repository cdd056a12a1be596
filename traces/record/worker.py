"""One process of a recording; :func:`workers.run` starts it with a folder and its rank."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from traces.record import pace
from traces.record.workers import Here


def main(folder: Path, rank: int) -> None:
    """Do the tasks in the folder's job, and write there what each of them returned."""
    job = json.loads((folder / "job.json").read_text())
    pace.die_with(job["parent"])
    here = _join(job, folder, rank)
    for at, task in enumerate(job["tasks"]):
        found = importlib.import_module(f"traces.record.{task['task']}").work(task, here)
        file = folder / f"{at}.{rank}.json"
        file.with_suffix(".part").write_text(json.dumps(found))
        file.with_suffix(".part").rename(file)  # it is read as soon as it is there
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()


def _join(job: dict[str, Any], folder: Path, rank: int) -> Here:
    """Take part in the process group, over NCCL where there is a GPU for each rank."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    pace.precise()
    if job["fifo"]:  # before gloo starts its threads, which inherit it
        pace.first()
    if job["fake"]:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=job["fake"])
        return Here(rank, job["fake"], "cpu", Path(job["folder"]))
    on_gpus = (
        job["device"] != "cpu"
        and dist.is_nccl_available()
        and torch.cuda.device_count() >= job["ranks"]  # NCCL refuses two ranks on one
    )
    device = f"cuda:{rank}" if on_gpus else "cpu"
    which: dict[str, Any] = {"backend": "gloo"}
    if on_gpus:
        torch.cuda.set_device(rank)
        which = {"backend": "nccl", "device_id": torch.device(device)}
    dist.init_process_group(
        **which, init_method=f"file://{folder}/rendezvous", rank=rank, world_size=job["ranks"]
    )
    return Here(rank, job["ranks"], device, Path(job["folder"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
