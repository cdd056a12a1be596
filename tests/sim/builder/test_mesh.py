"""Groups and coordinates: properties of any mesh, and Megatron's layout by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.builder.mesh import Mesh

degree = st.sampled_from([1, 2, 3, 4])
AXES = ("tp", "cp", "dp", "pp")
orders = st.permutations(["tp", "cp", "ep", "dp", "pp"]).map("-".join)
dense = st.builds(Mesh, tp=degree, cp=degree, dp=degree, pp=degree, order=orders)
moe = st.sampled_from(
    [Mesh(tp=2, cp=3, dp=4, pp=2, ep=4), Mesh(tp=4, dp=6, pp=3, ep=3, etp=2), Mesh(dp=8, ep=8)]
)


@given(dense, st.sampled_from(AXES))
def test_groups_share_out_all_ranks(mesh, axis):
    groups = mesh.groups(axis)
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world))
    assert {len(group) for group in groups} == {mesh.degree(axis)}


@given(dense, st.sampled_from(AXES))
def test_ranks_of_a_group_differ_in_its_axis_alone(mesh, axis):
    for group in mesh.groups(axis):
        at = [mesh.coordinates(rank) for rank in group]
        assert [here.pop(axis) for here in at] == list(range(mesh.degree(axis)))
        assert all(here == at[0] for here in at)


@given(dense, st.sampled_from(AXES))
def test_group_of_is_the_group_that_holds_the_rank(mesh, axis):
    assert all(rank in mesh.group_of(rank, axis) for rank in range(mesh.world))


@given(dense)
def test_rank_and_coordinates_are_inverse(mesh):
    assert [mesh.rank(**mesh.coordinates(r)) for r in range(mesh.world)] == list(range(mesh.world))


@given(dense)
def test_the_innermost_axis_counts_by_ones(mesh):
    stride = 1
    for axis in (axis for axis in mesh.order.split("-") if axis != "ep"):
        group = mesh.group_of(0, axis)
        assert group == tuple(range(0, stride * len(group), stride))
        stride *= len(group)


@given(moe, st.sampled_from(("etp", "ep", "edp", "pp")))
def test_the_experts_mesh_shares_out_the_same_ranks(mesh, axis):
    groups = mesh.groups(axis)
    assert mesh.etp * mesh.ep * mesh.edp * mesh.pp == mesh.world
    assert sorted(rank for group in groups for rank in group) == list(range(mesh.world))
    for group in groups:
        at = [mesh.coordinates(rank, expert=True) for rank in group]
        assert [here.pop(axis) for here in at] == list(range(len(group)))
        assert all(here == at[0] for here in at)


@given(moe)
def test_both_meshes_have_the_same_stages(mesh):
    pairs = [(mesh.coordinates(r), mesh.coordinates(r, expert=True)) for r in range(mesh.world)]
    assert all(a["pp"] == b["pp"] for a, b in pairs)


def test_megatrons_sixteen_gpus():
    """The example of Megatron-Core's parallel_state: 16 GPUs, tp 2, pp 4."""
    mesh = Mesh(tp=2, dp=2, pp=4)
    assert mesh.groups("tp") == [(2 * i, 2 * i + 1) for i in range(8)]
    assert mesh.groups("dp") == [
        (0, 2), (1, 3), (4, 6), (5, 7), (8, 10), (9, 11), (12, 14), (13, 15),
    ]  # fmt: skip
    assert mesh.groups("pp") == [(0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)]


def test_experts_take_their_ranks_from_tp_and_dp():
    """tp 2, dp 4, ep 4: experts over ranks 0-3 and 4-7, two replicas of each."""
    mesh = Mesh(tp=2, dp=4, ep=4)
    assert mesh.groups("ep") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert mesh.groups("edp") == [(0, 4), (1, 5), (2, 6), (3, 7)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tp": 0}, "tp is 0"),
        ({"order": "tp-dp-pp"}, "must name each of"),
        ({"dp": 4, "ep": 3}, "does not divide"),
        ({"dp": 4, "ep": 2, "order": "pp-tp-cp-ep-dp"}, "pp must be outermost"),
    ],
)
def test_meshes_that_cannot_be(arguments, says):
    with pytest.raises(ValueError, match=says):
        Mesh(**arguments)


def test_questions_outside_the_mesh():
    mesh = Mesh(tp=2)
    for ask in (lambda: mesh.coordinates(2), lambda: mesh.group_of(-1, "tp")):
        with pytest.raises(ValueError, match="not among the 2 ranks"):
            ask()
    with pytest.raises(ValueError, match="no axis 'xp'"):
        mesh.groups("xp")
    with pytest.raises(ValueError, match="tp 2 is not among its 2 coordinates"):
        mesh.rank(tp=2)
