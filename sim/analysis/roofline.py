"""How close kernels come to what the GPU can do: the FLOPs, bytes and seconds of each kernel."""

from __future__ import annotations

import numpy as np

from sim.analysis.weights import op_weights
from sim.graph import Compute, Floats
from sim.late import pd
from sim.timeline import Timeline


def roofline(timeline: Timeline) -> pd.DataFrame:
    """Compare each distinct kernel's FLOPs and bytes with its seconds, the costliest kernel first.

    ``name`` is that of the first such op. ``flops`` and ``bytes`` (of HBM traffic) are those of one
    kernel, and ``seconds`` is its mean as it ran, slowed by what ran beside it. ``count`` is how
    many ran on all ranks of the job and ``total_s`` the seconds of all. ``intensity`` is FLOPs per
    byte, ``flops_per_s`` the rate. A kernel of fixed duration, as in recordings, has no known FLOPs
    and is left out.
    """
    graph = timeline.graph
    ranks, n = op_weights(graph), len(graph.works)
    count = np.bincount(graph.work, ranks, n).astype(np.int64)
    total = np.bincount(graph.work, ranks * (timeline.end - timeline.start), n)
    first = np.full(len(graph.works), -1)
    first[graph.work[::-1]] = np.arange(len(graph))[::-1]  # of ops with one work, the first stays
    rows = []
    for k, work in enumerate(graph.works):
        if not isinstance(work, Compute) or not count[k]:
            continue
        name = graph.names[graph.name[first[k]]]
        rows.append((name, work.kind, work.dtype, work.flops, work.bytes, count[k], total[k]))
    columns = ["name", "kind", "dtype", "flops", "bytes", "count", "total_s"]
    out = pd.DataFrame(rows, columns=columns).astype({"flops": float, "bytes": float})
    out.insert(6, "seconds", out["total_s"] / out["count"])
    out["intensity"] = _ratio(out["flops"], out["bytes"])
    out["flops_per_s"] = _ratio(out["flops"], out["seconds"])
    return out.sort_values("total_s", ascending=False, kind="stable", ignore_index=True)


def _ratio(above: pd.Series, below: pd.Series) -> Floats:
    """Return the ratio of two columns, and 0 where ``below`` is 0: such kernels do nothing."""
    a, b = above.to_numpy(float), below.to_numpy(float)
    out: Floats = np.divide(a, b, out=np.zeros_like(a), where=b > 0)
    return out
