"""Why overlap fails: the cases that users report, on timelines and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from sim.analysis.exposed import by_cause, exposed, sentences
from sim.engine import simulate
from sim.graph import Builder, Fixed
from sim.machine.hardware import ideal
from sim.runs.run import run
from sim.timeline import Timeline

RECIPE = """
model = { preset = "llama3-8b", layers = 6, sequence = 2048 }
cluster = { topology = "dgx_a100", gpus = 16 }
parallelism.fsdp = { kind = "fsdp2", prefetch = 0 }
training.global_batch = 16
"""


GATHER = "param_all_gather"


def by_hand(copy_stream: str, depth: int, copy_seconds: float = 0.5) -> Timeline:
    """Three layers of 4 s; the gather of each takes 5 s, with a copy-in before it.

    It is issued when the kernel ``depth`` layers before its own has ended.
    """
    builder, kernels = Builder(), list[int]()
    for layer in range(3):
        before = kernels[layer - 1 - depth : layer - depth] if layer > depth else []
        work = Fixed(copy_seconds)
        copy = builder.add("param_copy_in", 0, copy_stream, work, before, layer=layer, phase="F")
        gather = builder.add(
            "param_all_gather",
            0,
            "all_gather",
            Fixed(5.0, "communication", "dp"),
            [copy],
            layer=layer,
            phase="F",
        )
        kernels.append(
            builder.add("mlp", 0, "compute", Fixed(4.0), [gather], layer=layer, microbatch=0)
        )
    graph = builder.graph()
    return simulate(graph, ideal(graph))


def test_without_prefetch_nothing_runs_beside_a_gather() -> None:
    """Depth 0: 5 s of each of three gathers are bare; the sentence names the kernel before."""
    found = exposed(by_hand("copy", 0))
    assert [one.seconds for one in found] == [5.0, 5.0, 5.0]
    last = next(one for one in found if one.op == 7)
    assert last.cause == "no_work"
    assert last.after == 5
    assert "could start only when mlp (layer 1, microbatch 0, rank 0) had ended" in last.sentence
    assert "gathered 1 layer ahead, and a deeper prefetch" in last.sentence


def test_a_gather_can_wait_for_the_one_before() -> None:
    """Depth 1: gathers 0.5 to 5.5, to 10.5, to 15.5; layers 5.5 to 9.5, 10.5 to 14.5.

    The third copy-in covers 9.5 to 10, so 0.5 s of the second gather are bare.
    """
    found = {one.op: one for one in exposed(by_hand("copy", 1))}
    assert (found[4].seconds, found[4].cause) == (0.5, "stream")
    assert found[4].sentence.endswith("param_all_gather (layer 0, rank 0) on its stream.")


def test_a_gather_can_be_longer_than_what_runs_beside_it() -> None:
    """Copies of 1.5 s: the third gather from 12 to 17, with the second layer from 11.5 to 15.5."""
    found = {one.op: one for one in exposed(by_hand("copy", 1, 1.5))}
    assert (found[7].seconds, found[7].cause) == (1.5, "bandwidth")
    assert "kernels beside it take 3.5e+03 ms" in found[7].sentence
    assert "gathered 2 layers ahead" in found[7].sentence


def test_a_copy_in_on_the_compute_stream_holds_its_gather_up() -> None:
    """Though issued a layer ahead, it waits for its turn behind the layer's kernels."""
    found = [one for one in exposed(by_hand("compute", 1)) if one.op == 7]
    assert [one.cause for one in found] == ["copy_in"]
    assert "its copy-in stood on the compute stream" in found[0].sentence
    assert "prefetch" not in found[0].sentence  # the copy would stand there all the same


def reused(*seconds: float) -> Timeline:
    """Layers of these seconds whose parameters are gathered for 4 s each into two buffers."""
    builder, kernels = Builder(), list[int]()
    builder.persistent = {0: {"communication_buffers": 2.0}}
    for layer, one in enumerate(seconds):
        work = Fixed(4.0, "communication", "dp")
        before = kernels[layer - 2 : layer - 1] if layer > 1 else []
        gather = builder.add("param_all_gather", 0, "all_gather", work, before, layer=layer)
        kernels.append(builder.add("mlp", 0, "compute", Fixed(one), [gather], layer=layer))
    graph = builder.graph()
    return simulate(graph, ideal(graph))


def test_a_gather_can_wait_for_the_buffer_of_a_layer_before() -> None:
    """Layers 4 to 10, 10 to 12; the third's gather may take the first's buffer at 10, until 14.

    Two of its four seconds are bare, and no prefetch would change that.
    """
    found = {one.op: one for one in exposed(reused(6.0, 2.0, 6.0))}
    assert (found[4].seconds, found[4].cause, found[4].after) == (2.0, "bandwidth", 1)
    assert found[4].sentence.endswith(
        "its buffer was that of layer 0, and one more buffer would start it sooner."
    )
    assert "prefetch" not in found[4].sentence


def test_where_overlap_works_nothing_is_said() -> None:
    """Where a layer takes longer than a gather only the first is bare, but behind its copy-in."""
    assert [one.op for one in exposed(reused(6.0, 6.0, 6.0))] == [0]
    assert [one.op for one in exposed(faster(by_hand("copy", 1)))] == [1]
    assert [one.cause for one in exposed(faster(by_hand("compute", 1)))][-1] == "copy_in"


def faster(of: Timeline) -> Timeline:
    """With gathers of 2 s instead of 5."""
    works = tuple(
        work._replace(seconds=2.0) if isinstance(work, Fixed) and work.seconds == 5.0 else work
        for work in of.graph.works
    )
    graph = replace(of.graph, works=works)
    return simulate(graph, ideal(graph))


def test_hidden_gathers_of_a_step_are_not_spoken_of(recipe: Path) -> None:
    """FSDP2 and YaFSDP gather layers 1 to 3 in the forward beside the layers before, as they can
    with 2,048 tokens; what rounding leaves bare of them counts for nothing."""
    for fsdp in ({"kind": "fsdp2", "prefetch": 1}, {"kind": "yafsdp"}):
        of = run(recipe, {"parallelism.fsdp": fsdp}).timeline
        bare = [of.graph.op(one.op) for one in exposed(of)]
        names = {(op.name, op.phase, op.layer) for op in bare}
        assert not names & {(GATHER, "F", layer) for layer in (1, 2, 3)}


def test_a_shallow_prefetch_is_named_on_a_simulated_step(recipe: Path) -> None:
    """FSDP2 on A100: without prefetch gathers are exposed for want of work, with it much less."""
    none, one = (
        run(recipe, {"parallelism.fsdp": {"kind": "fsdp2", "prefetch": depth}}).timeline
        for depth in (0, 1)
    )
    gathers = [[o for o in exposed(of) if of.graph.op(o.op).name == GATHER] for of in (none, one)]
    bare = [sum(o.seconds for o in some) for some in gathers]
    assert bare[1] < 0.7 * bare[0]
    assert next(iter(by_cause(gathers[0]))) == "no_work"
    assert any("a deeper prefetch" in said for said in sentences(none, most=20))


def test_a_buffer_in_use_is_what_a_gather_waits_for(recipe: Path) -> None:
    """YaFSDP's fourth layer may be gathered only when the second has given its buffer back."""
    ran = run(recipe, {"parallelism.fsdp": {"kind": "yafsdp"}, "model.sequence": 256}).timeline
    graph = ran.graph
    names, layers = np.array(graph.names)[graph.name], graph.layer
    gathers = np.flatnonzero((names == GATHER) & (layers == 3))
    forward = int(gathers[np.argmin(ran.start[gathers])])
    assert 1 in layers[graph.waits(forward)].tolist()  # which had the buffer before
    bare = {one.op: one for one in exposed(ran)}
    assert bare[forward].cause in ("bandwidth", "stream")


def test_what_waits_for_the_optimizer_could_not_be_gathered_sooner(recipe: Path) -> None:
    """ZeRO-2 gathers updated weights at the end of the step; no prefetch brings that forward."""
    split = {"parallelism.fsdp": None, "parallelism.zero": 2}
    found = [one.sentence for one in exposed(run(recipe, split).timeline)]
    longest = next(said for said in found if said.startswith(GATHER))
    assert "could start only when copy_weights (rank 0) had ended, and nothing else" in longest
    assert "prefetch" not in longest


def test_seconds_are_those_no_kernel_covers(recipe: Path) -> None:
    """Two at once count twice here, and once in the breakdown of the rank's time."""
    result = run(recipe)
    spent = sum(of["mean"] for of in result.summary["time_s"]["exposed"].values())
    assert sum(by_cause(exposed(result.timeline)).values()) >= spent * (1 - 1e-9)
    assert sum(by_cause(exposed(by_hand("copy", 0))).values()) == 15.0
    assert exposed(simulate(Builder().graph(), ideal(Builder().graph()))) == []
