"""Builds the graph of a recorded training: our own DDP, FSDP2 or TP, for the same model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from schedules.input_error import InputError
from sim.builder.training_step import training_step
from sim.graph import Graph, offsets, owners
from sim.recipe import recipe_file
from sim.runs.run import job_of

MIB = 2**20
MODES = ("ddp", "fsdp2", "tp")
OPTIMIZERS = {"sgd": "sgd", "adam": "adam", "adamw": "adam"}
MLP_ONLY = Path(__file__).parent / "mlp_blocks.py"


def recipe(mode: str, world: int, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the recording ran, as a recipe's tables.

    ``model`` has ``blocks``, ``d``, ``heads``, ``ffn``, ``seq``, ``mb`` and ``bucket_bytes``;
    ``heads`` 0 is a stack of MLPs alone.
    """
    if mode not in MODES:
        raise InputError(f"a recording of {mode} cannot be predicted; {', '.join(MODES)} can")
    _said(model)
    split = {"tp": world} if mode == "tp" else {"dp": world}
    parallelism: dict[str, Any] = {**split, "tp_backward_overlap": False}
    if mode == "ddp":
        limit = max(model["bucket_bytes"] // MIB, 1) * MIB  # which torch's buckets pass
        parallelism |= {
            "bucket_mb": limit / 1e6,
            "gradient_as_bucket_view": bool(model.get("bucket_view")),
        }
    if mode == "fsdp2":
        parallelism["fsdp"] = {"kind": "fsdp2"}
    if not model["heads"]:
        parallelism["strategy"] = str(MLP_ONLY)
    return {
        "model": {
            "layers": model["blocks"], "hidden": model["d"], "heads": model["heads"] or world,
            "ffn": model["ffn"], "sequence": model["seq"], "vocab": 0, "position": "none",
            "activation": "gelu", "gated": False, "bias": True, "qkv_bias": True,
        },
        "cluster": {"topology": "dgx_a100", "gpus": world},
        "parallelism": parallelism,
        "training": {
            "micro_batch": model["mb"],
            "global_batch": model["mb"] * split.get("dp", 1),
            "dtype": "fp32", "optimizer": OPTIMIZERS[model["optimizer"].lower()], "clip": False,
        },
        "simulation": {"fold": "none"},
    }  # fmt: skip


def _said(model: Mapping[str, Any]) -> None:
    """Raise InputError for sizes that are missing, and for what no recording ran."""
    for key in ("blocks", "d", "heads", "ffn", "seq", "mb", "bucket_bytes"):
        value, least = model.get(key), 0 if key in ("heads", "bucket_bytes") else 1
        numbers = (int, float) if key == "bucket_bytes" else int
        if not isinstance(value, numbers) or isinstance(value, bool) or value < least:
            raise InputError(
                f"a recording's config has {key} = {value!r}, where a number from {least} on "
                "is needed to predict it"
            )
    optimizer = model.get("optimizer")
    if not isinstance(optimizer, str) or optimizer.lower() not in OPTIMIZERS:
        raise InputError(
            f"a recording's optimizer is {optimizer!r}, but predictions know only "
            f"{', '.join(OPTIMIZERS)}"
        )


def graph(mode: str, world: int, model: Mapping[str, Any]) -> Graph:
    """Return the step of a recorded training on all ranks.

    The thread waits for each of gloo's collectives in FSDP2 and TP where it calls for it; in DDP it
    waits for all of them at the end of the backward.
    """
    return _graph(mode, world, json.dumps(model))


@lru_cache(maxsize=64)  # costs of each run are fitted to the same others
def _graph(mode: str, world: int, model: str) -> Graph:
    job = job_of(recipe_file.parse(recipe(mode, world, json.loads(model))))
    if job.data.sharding:  # a forward's gathers are called for when their unit begins
        now: dict[str, Any] = {"forward": 0}
        sharding = replace(job.data.sharding, **now)
        vars(job)["data"] = replace(job.data, sharding=sharding)  # in place of the derived one
    of = training_step(job)
    return one_by_one(of) if blocks(mode) else of


def blocks(mode: str) -> bool:
    """Return whether a thread waits for each of gloo's collectives where it calls for it."""
    return mode != "ddp"


def one_by_one(graph: Graph) -> Graph:
    """Return the graph in which each rank runs one op after another, in the order of issue.

    >>> from sim.graph import Builder, Fixed
    >>> b = Builder()
    >>> first = b.add("a", 0, "compute", Fixed(5.0))
    >>> second = b.add("b", 0, "dp", Fixed(4.0))
    >>> third = b.add("c", 0, "compute", Fixed(3.0))
    >>> one_by_one(b.graph()).waits(third).tolist()
    [1]
    """
    order = _order(graph)
    rank = graph.rank[order]
    by_rank = order[np.argsort(rank, kind="stable")]
    same = graph.rank[by_rank[1:]] == graph.rank[by_rank[:-1]]
    later, earlier = by_rank[1:][same], by_rank[:-1][same]
    owner = np.concatenate([owners(graph.wait_start), later])
    on = np.concatenate([graph.wait_on, earlier])
    lag = np.concatenate([graph.wait_lag, np.zeros(len(later))])
    sort = np.argsort(owner, kind="stable")
    return replace(
        graph,
        wait_start=offsets(np.bincount(owner, minlength=len(graph))),
        wait_on=on[sort].astype(np.int32),
        wait_lag=lag[sort],
    )


def _order(graph: Graph) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return all ops, each after what it waits for, and otherwise by index."""
    of: nx.DiGraph[int] = nx.DiGraph()
    of.add_nodes_from(range(len(graph)))
    of.add_edges_from(zip(graph.wait_on.tolist(), owners(graph.wait_start).tolist(), strict=True))
    for _, _, ops in graph.by_stream():
        nx.add_path(of, ops.tolist())
    return np.array([*nx.lexicographical_topological_sort(of)], np.int64)


def mode_of(name: str) -> str:
    """Return which of :data:`MODES` a recording's mode is; DDP's variants do the same.

    >>> mode_of("ddp_hook"), mode_of("tp")
    ('ddp', 'tp')
    """
    return "ddp" if name.startswith("ddp") else name
