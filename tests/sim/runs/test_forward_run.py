"""A sharded forward by itself: every case worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sim.analysis.exposed import by_cause, exposed
from sim.runs.forward_run import sharded_forward
from sim.timeline import Timeline


def spans(of: Timeline, stream: str) -> list[tuple[float, float]]:
    ops = of.on(0, stream)
    return [*zip(of.start[ops].tolist(), of.end[ops].tolist(), strict=True)]


def test_a_prefetch_says_behind_which_layer_a_gather_is_issued() -> None:
    """Gathers of 3, layers of 4: at depth 1 each begins with the layer before its own."""
    of = sharded_forward([4, 4, 4], 3, prefetch=1)
    assert spans(of, "all_gather") == [(0, 3), (3, 6), (7, 10)]
    assert spans(of, "compute") == [(3, 7), (7, 11), (11, 15)]
    assert sharded_forward([4, 4, 4], 3, prefetch=0).seconds == 3 * (3 + 4)


@pytest.mark.parametrize("depth", [1, 2, None])
def test_no_prefetch_is_faster_than_the_gathers(depth: int | None) -> None:
    """Gathers of 5 behind each other and the last layer: the network is never idle."""
    of = sharded_forward([4, 4, 4, 4], 5, prefetch=depth)
    assert of.seconds == 4 * 5 + 4
    assert by_cause(exposed(of)) == {"no_work": 5.0, "stream": 3.0}
    assert not any("deeper prefetch" in one.sentence for one in exposed(of))


def test_a_buffer_is_free_when_the_layer_that_had_it_has_ended() -> None:
    """Layers of 4 and 1: the third gather begins at 6, behind the first layer, not at 4."""
    two, three = (sharded_forward([4, 1, 4, 1], 2, buffers=n) for n in (2, 3))
    assert spans(two, "all_gather") == [(0, 2), (2, 4), (6, 8), (8, 10)]
    assert spans(two, "compute") == [(2, 6), (6, 7), (8, 12), (12, 13)]
    assert three.seconds == 2 + 10
    assert by_cause(exposed(two)) == {"no_work": 2.0, "bandwidth": 1.0}


def test_a_copy_on_the_compute_stream_takes_its_turn() -> None:
    """Copies of 1 behind the layer before: nothing overlaps; beside it, all but the first do."""
    behind = sharded_forward([4, 4, 4], 3, copy=1, copy_stream="compute")
    assert behind.seconds == 3 * (1 + 3 + 4)
    found = exposed(behind)
    assert {one.cause for one in found} == {"copy_in"}
    assert any(one.sentence.endswith("compute stream, and it comes first.") for one in found)
    assert sharded_forward([4, 4, 4], 3, copy=1).seconds == 1 + 3 + 3 * 4


def test_layers_can_differ_and_are_parted_in_pictures() -> None:
    of = sharded_forward([5, 4, 3], 0.5)
    assert np.array_equal(of.graph.stage[of.on(0, "compute")], [0, 1, 2])
    assert of.seconds == 0.5 + 12


@pytest.mark.parametrize("wrong", [{"buffers": 0}, {"prefetch": -1}])
def test_less_than_one_buffer_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least"):
        sharded_forward([4], 1, **wrong)
