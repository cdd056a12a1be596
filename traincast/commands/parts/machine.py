"""Describes a topology as a job sees it: its GPU, its links, and the routes between GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim import units
from sim.machine.cluster import Cluster
from sim.machine.links import by_kind


def describe(cluster: Cluster) -> dict[str, Any]:
    """Return GPU, kinds of links and typical routes (bandwidth in B/s each way, latency in s).

    ``count`` is the number of cables of a kind; a link and its way back are one cable. The links
    between two switches count as one cable, with the bandwidth of all of them together.
    """
    gpu = cluster.gpu
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
        "borrowed": dict(cluster.borrowed),
        "links": [
            {**kind._asdict(), "count": len(cables)}
            for kind, cables in by_kind(cluster.network).items()
        ],
        "routes": _routes(cluster),
    }


def _routes(cluster: Cluster) -> dict[str, dict[str, float]]:
    """Return routes from the first GPU; that across its node only where it is another."""
    per_node = cluster.gpus_per_node
    others = {"same node": 1, "across node": per_node - 1, "next node": per_node}
    out = {name: _route(cluster, 0, gpu) for name, gpu in others.items() if 0 < gpu < cluster.gpus}
    if out.get("across node") == out.get("same node"):
        out.pop("across node", None)
    return out


def _route(cluster: Cluster, a: int, b: int) -> dict[str, float]:
    route = cluster.route(a, b)
    return {
        "hops": len(route),
        "bandwidth": float(min(cluster.capacity[list(route)])),
        "latency": float(cluster.latency(route)),
    }


def gpu_rows(machine: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return how many GPUs there are, and of which kind, for people."""
    gpu = machine["gpu"]
    peaks = [f"{k} {v / 1e12:.4g}" for k, v in gpu["peak_flops"].items()]
    return [
        ("GPUs", f"{machine['gpus']:,}, {machine['gpus_per_node']} per node"),
        ("GPU", f"{gpu['name']}, {gpu['sms']} SMs"),
        ("memory", f"{units.size(gpu['memory_bytes'])}, {_rate(gpu['memory_bandwidth'])}"),
        ("peak, TFLOP/s", ", ".join(peaks)),
    ]


def link_rows(machine: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """Return which links there are, and two routes over them, for people."""
    links = [
        (link["between"], f"{link['count']:,}", _rate(link["bandwidth"]), _delay(link["latency"]))
        for link in machine["links"]
    ]
    names = {
        "same node": "route in a node",
        "across node": "route to the last GPU of a node",
        "next node": "route to the next node",
    }
    routes = [
        (names[name], f"{route['hops']} hops", _rate(route["bandwidth"]), _delay(route["latency"]))
        for name, route in machine["routes"].items()
    ]
    return links + routes


def _rate(value: float) -> str:
    """Return GB/s in four digits, without an exponent.

    >>> _rate(367.2e9), _rate(26.88e12)
    ('367.2 GB/s', '26,880 GB/s')
    """
    return f"{value / 1e9:,.0f} GB/s" if value >= 1e12 else f"{value / 1e9:.4g} GB/s"


def _delay(value: float) -> str:
    return units.seconds(value)
