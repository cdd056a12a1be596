"""What a topology looks like to a job: its GPU, its links, and the routes between GPUs."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sim import units
from sim.cluster import Cluster


def describe(cluster: Cluster) -> dict[str, Any]:
    """GPU, kinds of links (bandwidth in B/s, latency in s, how many) and typical routes."""
    gpu = cluster.gpu
    kinds = Counter(
        (data["bandwidth"], data["latency"]) for _, _, data in cluster.network.edges(data=True)
    )
    pairs = {"same node": (0, 1), "next node": (0, cluster.gpus_per_node)}
    return {
        "name": cluster.name,
        "gpus": cluster.gpus,
        "gpus_per_node": cluster.gpus_per_node,
        "gpu": {
            "name": gpu.name,
            "sms": gpu.sms,
            "memory_bytes": gpu.memory,
            "memory_bandwidth": gpu.memory_bandwidth,
            "peak_flops": dict(gpu.peak),
        },
        "links": [
            {"bandwidth": bandwidth, "latency": latency, "count": count}
            for (bandwidth, latency), count in sorted(kinds.items(), reverse=True)
        ],
        "routes": {
            name: _route(cluster, *pair) for name, pair in pairs.items() if pair[1] < cluster.gpus
        },
    }


def _route(cluster: Cluster, a: int, b: int) -> dict[str, float]:
    route = cluster.route(a, b)
    return {
        "hops": len(route),
        "bandwidth": float(min(cluster.capacity[list(route)])),
        "latency": float(cluster.latency(route)),
    }


def rows(machine: dict[str, Any]) -> list[tuple[str, str]]:
    """The same for people."""
    gpu = machine["gpu"]
    peaks = ", ".join(f"{k} {v / 1e12:.4g}" for k, v in gpu["peak_flops"].items())
    out = [
        ("GPUs", f"{machine['gpus']}, {machine['gpus_per_node']} per node"),
        ("GPU", f"{gpu['name']}, {gpu['sms']} SMs"),
        ("memory", f"{units.size(gpu['memory_bytes'])}, {_rate(gpu['memory_bandwidth'])}"),
        ("peak, TFLOP/s", peaks),
    ]
    out += [
        (f"{link['count']} links", f"{_rate(link['bandwidth'])}, {units.seconds(link['latency'])}")
        for link in machine["links"]
    ]
    out += [
        (
            f"route in the {name}" if name == "same node" else f"route to the {name}",
            f"{route['hops']} hops, {_rate(route['bandwidth'])}, {units.seconds(route['latency'])}",
        )
        for name, route in machine["routes"].items()
    ]
    return out


def _rate(value: float) -> str:
    return f"{value / 1e9:.4g} GB/s"
