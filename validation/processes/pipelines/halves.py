"""Seconds of whole and split backwards of real layers, where a recording has only one kind.

A split backward is I and then W. Unless it was measured, each takes of B what it has of the FLOPs:
the products with weights cost I and W the same, 24 d^2 per token of a layer, and attention's two
products, causal or not, are I's, 8 s d per token (twice its forward; Korthikanti et al. 2022,
arXiv:2205.05198, appendix A).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from validation.processes.pipelines.costs import Costs, Quantiles


def completed(costs: Costs) -> tuple[Costs, str]:
    """Return the costs with B, I and W, and a sentence on what was not measured, if anything."""
    known, of = costs.spreads, costs.model
    if not of or "F" not in known:
        return costs, ""
    if "B" in known and not {"I", "W"} <= known.keys():
        share = input_share(of)
        made = {"I": _scaled(known["B"], share), "W": _scaled(known["B"], 1 - share)}
        said = f"I and W were not measured; they are {share:.0%} and {1 - share:.0%} of B, as FLOPs"
    elif "B" not in known and {"I", "W"} <= known.keys():
        made = {"B": Quantiles((known["I"].mean + known["W"].mean,))}
        said = "B was not measured; it is the mean I and W together"
    else:
        return costs, ""
    return replace(costs, spreads={**made, **known}), said


def input_share(model: Mapping[str, int]) -> float:
    """Return the share of a layer's backward FLOPs that its input gradients have.

    >>> round(input_share({"d": 256, "seq": 128}), 4)
    0.5385
    """
    linear, attention = 24 * model["d"] ** 2, 8 * model["seq"] * model["d"]
    return (linear + attention) / (2 * linear + attention)


def _scaled(of: Quantiles, by: float) -> Quantiles:
    return Quantiles(tuple(seconds * by for seconds in of.bins))
