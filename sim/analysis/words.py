"""A helper of analyses: why a rank does not compute, in the words of tables and pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim import units

CAUSES = {
    "warm_up": "warm-up: no microbatch has come yet",
    "drain": "drain: all microbatches are done",
    "waiting": "waiting for a peer",
    "dependency": "what comes next needs another rank",
    "lag": "gap before a launch",
}
"""The causes of :mod:`sim.analysis.idle` but for launches; all others are data that moves."""


def cause_name(cause: str) -> str:
    """Return a cause in words.

    >>> cause_name("exposed_tp"), cause_name("waiting"), cause_name("exposed_model")
    ('tp: data moves', 'waiting for a peer', 'model (gradient norm): data moves')
    """
    dimension = cause.removeprefix("exposed_")
    if dimension == cause:
        return CAUSES.get(cause, cause.replace("_", " "))
    return f"{'model (gradient norm)' if dimension == 'model' else dimension}: data moves"


def short_cause(cause: str) -> str:
    """Return a cause in one or two words.

    >>> short_cause("exposed_tp"), short_cause("warm_up")
    ('tp moves', 'warm up')
    """
    dimension = cause.removeprefix("exposed_")
    return cause.replace("_", " ") if dimension == cause else f"{dimension} moves"


def main_causes(summary: Mapping[str, Any]) -> list[str]:
    """Return up to three causes of not computing that count, the largest first, with their share.

    They are those of a run's ``summary``; one of less than 0.05 % of the step does not count.

    >>> by_cause = {"drain": 0.25, "exposed_tp": 0.5, "warm_up": 1e-9}
    >>> main_causes({"step_time_s": 4.0, "bubble": {"by_cause_s": by_cause}})
    ['tp moves 12.5%', 'drain 6.2%']
    """
    share = {
        short_cause(cause): seconds / summary["step_time_s"]
        for cause, seconds in summary["bubble"]["by_cause_s"].items()
    }
    most = sorted(share, key=lambda cause: -share[cause])[:3]
    return [f"{cause} {share[cause]:.1%}" for cause in most if share[cause] >= 0.0005]


def interval(summary: Mapping[str, Any]) -> str:
    """Return the interval of a step time in words.

    >>> interval({"interval_s": [1.31, 1.52]})
    '1.31 s to 1.52 s'
    """
    low, high = summary["interval_s"]
    return f"{units.seconds(low)} to {units.seconds(high)}"


def nearest(summary: Mapping[str, Any]) -> str:
    """Return the nearest measured runs and the errors on them in words.

    >>> nearest({"nearest_measured": [{"run": "mpt-70b on 256 H100", "error": -0.072}]})
    'mpt-70b on 256 H100, -7.2 %'
    """
    runs = summary["nearest_measured"]
    return "; ".join(f"{run['run']}, {100 * run['error']:+.1f} %" for run in runs)
