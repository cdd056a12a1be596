"""Why a communication is exposed: what let it start, and what could run beside it.

A communication is exposed while its data moves and no kernel of its rank runs. The cause is one of
these:

- ``stream``: it stood behind another communication of its stream;
- ``copy_in``: the parameters to gather were put together on the compute stream, behind kernels;
- ``no_work``: it could start only after the last kernel before the one that waits for it;
- ``bandwidth``: kernels run beside it, but not for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sim.analysis.activity import COMPUTE
from sim.analysis.hidden import transfers
from sim.analysis.relations import binding
from sim.graph import PHASES, Longs
from sim.timeline import Timeline

if TYPE_CHECKING:
    import pandas as pd

ROUNDING = 1e-9  # of a communication: what is left of it by rounding is not exposed


@dataclass(frozen=True)
class Exposed:
    """One communication on one rank whose data moves while no kernel runs."""

    op: int
    seconds: float  # of it, uncovered by kernels
    cause: str
    after: int  # the op whose end let it, or its copy-in, start; -1 if nothing did
    sentence: str
    stands_for: int = 1  # ranks of the job on which it happens


def exposed(timeline: Timeline, least: float = 0.0) -> list[Exposed]:
    """Find communication that no kernel hides, and say for each what prevented it.

    A row for each communication that is exposed for more than ``least`` seconds, the longest first.
    """
    bare = _bare(transfers(timeline))
    found = _reasons(timeline, bare[bare["exposed_s"] > least])
    return sorted(found, key=lambda one: (-one.seconds, one.op))


def explained(timeline: Timeline, of: pd.DataFrame, most: int = 10) -> pd.DataFrame:
    """Return the most exposed rows of :func:`.transfers`, with the cause and a sentence for each.

    ``of`` has rows of :func:`.transfers`: all of them or a part, such as one dimension. At most
    ``most`` rows are returned, the longest first.
    """
    longest = _bare(of).nlargest(most, "exposed_s", keep="first")
    found = _reasons(timeline, longest)
    return longest.assign(
        cause=[one.cause for one in found], sentence=[one.sentence for one in found]
    ).reset_index(drop=True)


def _bare(of: pd.DataFrame) -> pd.DataFrame:
    return of[of["exposed_s"] > ROUNDING * of["moving_s"]]


def _reasons(timeline: Timeline, of: pd.DataFrame) -> list[Exposed]:
    needs = binding(timeline)
    columns = (of[name].tolist() for name in ("op", "exposed_s", "hidden_s"))
    return [_why(timeline, needs, *row) for row in zip(*columns, strict=True)]


def _why(timeline: Timeline, needs: Longs, op: int, seconds: float, hidden: float) -> Exposed:
    graph = timeline.graph
    before = int(needs[op])
    copied = before >= 0 and graph.names[graph.name[before]] == "param_copy_in"
    after = int(needs[before]) if copied else before
    of_it = f"{_called(timeline, op)} moves data for {_ms(seconds + hidden)}"
    bare = f"{_ms(seconds)} of them with no kernel beside it"
    started = f"it could start only when {_called(timeline, after)} had ended" if after >= 0 else ""
    if copied and graph.streams[graph.stream[before]].startswith(COMPUTE):
        cause, said = "copy_in", "its copy-in stood on the compute stream"
        said = f"{said}: {started}" if started else f"{said}, and it comes first"
    elif after >= 0 and graph.stream[after] == graph.stream[op]:
        cause, said = "stream", f"it stood behind {_called(timeline, after)} on its stream"
    elif hidden > ROUNDING * (seconds + hidden):
        said = f"kernels beside it take {_ms(hidden)}, which is too short for its bandwidth"
        cause, said = "bandwidth", f"{said}; {started}" if started else said
    else:
        cause, said = "no_work", f"{started or 'it comes first'}, and nothing else could run then"
    elsewhere = cause in ("stream", "copy_in")  # behind something that a prefetch would not move
    sooner = "" if elsewhere else _sooner(timeline, op, after)
    ranks = graph.stands_for.get(int(graph.rank[op]), 1)
    return Exposed(op, seconds, cause, after, f"{of_it}, {bare}: {said}{sooner}.", ranks)


def _sooner(timeline: Timeline, op: int, after: int) -> str:
    """Return what would let a gather of parameters start sooner, as the end of a sentence.

    It is empty for other communication, which cannot start before its data is there.
    """
    graph = timeline.graph
    if after < 0 or not graph.names[graph.name[op]].startswith("param"):
        return ""
    if PHASES[graph.phase[after]] == "O":  # nothing of the step can come before, or it is updated
        return ""
    layers = abs(int(graph.layer[op]) - int(graph.layer[after]))
    buffers = graph.persistent.get(int(graph.rank[op]), {}).get("communication_buffers", 0.0)
    if buffers and graph.layer[after] >= 0 and graph.layer[op] >= 0 and layers > 1:
        was = f"layer {int(graph.layer[after])}"
        return f"; its buffer was that of {was}, and one more buffer would start it sooner"
    ahead = f"{layers} layer{'s' * (layers != 1)} ahead" if graph.layer[after] >= 0 else "ahead"
    return (
        f"; it is gathered {ahead}, and a deeper prefetch or one more buffer would start it sooner"
    )


def _called(timeline: Timeline, i: int) -> str:
    op = timeline.graph.op(i)
    where = [f"layer {op.layer}"] * (op.layer >= 0)
    where += [f"microbatch {op.microbatch}"] * (op.microbatch >= 0)
    return f"{op.name} ({', '.join([*where, f'rank {op.rank}'])})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def by_cause(found: list[Exposed]) -> dict[str, float]:
    """Return the seconds of each cause, over all ranks of the job and communications."""
    out: dict[str, float] = {}
    for one in found:
        out[one.cause] = out.get(one.cause, 0.0) + one.stands_for * one.seconds
    return dict(sorted(out.items(), key=lambda item: (-item[1], item[0])))


def sentences(timeline: Timeline, most: int = 5) -> Iterator[str]:
    """Yield a sentence for each of the longest exposed communications: what prevented hiding it."""
    for one in exposed(timeline)[:most]:
        yield one.sentence
