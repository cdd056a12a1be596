"""Loads of experts against closed forms, limits and sums."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.model.routing import ExpertLoad, dropped, shares, tokens

ZIPF = ExpertLoad("zipf", s=1.0)


def test_zipf_has_its_closed_form() -> None:
    """Over 4 experts 1 + 1/2 + 1/3 + 1/4 = 25/12, so 12, 6, 4 and 3 of 25; s = 2: 205/144."""
    assert shares(ZIPF, 4) == pytest.approx([12 / 25, 6 / 25, 4 / 25, 3 / 25], rel=1e-14)
    squared = [144 / 205, 36 / 205, 16 / 205, 9 / 205]
    assert shares(ExpertLoad("zipf", s=2.0), 4) == pytest.approx(squared, rel=1e-14)


@pytest.mark.parametrize(
    "load", [ExpertLoad(), ExpertLoad("zipf", s=0.0), ExpertLoad("histogram", counts=(3,) * 5)]
)
def test_even_loads_are_alike(load: ExpertLoad) -> None:
    assert shares(load, 5) == (0.2,) * 5
    assert tokens(load, 5, 100) == (20,) * 5


def test_a_histogram_is_normalised() -> None:
    assert shares(ExpertLoad("histogram", counts=(1.0, 0.0, 3.0)), 3) == (0.25, 0.0, 0.75)
    with pytest.raises(ValueError, match="2 counts needs 3, one per expert"):
        shares(ExpertLoad("histogram", counts=(1.0, 3.0)), 3)


def test_dirichlet_is_one_seeded_draw_and_even_in_the_limit() -> None:
    """Variance of a share: (E - 1) / (E² (E alpha + 1)); measured over all shares of one draw."""
    one, other = (shares(ExpertLoad("dirichlet", alpha=0.5, seed=seed), 64) for seed in (1, 2))
    assert one == shares(ExpertLoad("dirichlet", alpha=0.5, seed=1), 64) != other
    even = shares(ExpertLoad("dirichlet", alpha=1e6, seed=1), 64)
    assert even == pytest.approx([1 / 64] * 64, rel=0.01)
    many = shares(ExpertLoad("dirichlet", alpha=2.0, seed=3), 10_000)
    variance = sum((p - 1e-4) ** 2 for p in many) / 1e4
    assert variance == pytest.approx(9999 / (1e8 * 20_001), rel=0.1)


LOADS = st.one_of(
    st.just(ExpertLoad()),
    st.builds(ExpertLoad, st.just("zipf"), s=st.floats(0, 4)),
    st.builds(ExpertLoad, st.just("dirichlet"), alpha=st.floats(0.1, 10), seed=st.integers(0, 99)),
)


@pytest.mark.slow
@given(LOADS, st.integers(1, 300), st.integers(1, 10**6))
def test_every_copy_has_an_expert(load: ExpertLoad, experts: int, copies: int) -> None:
    """Whole tokens, none lost, each expert within one of its share."""
    taken = tokens(load, experts, copies)
    assert sum(taken) == copies
    assert all(abs(n - p * copies) < 1 for n, p in zip(taken, shares(load, experts), strict=True))
    assert dropped(load, experts, copies, None) == 0


def test_an_even_load_that_does_not_divide_gives_the_first_ones_more() -> None:
    assert tokens(ExpertLoad(), 4, 30) == (8, 8, 7, 7)


@pytest.mark.parametrize("factor", [1.0, 1.25, 2.0])
def test_capacity_drops_what_is_beyond_it(factor: float) -> None:
    """Of 100 over 4, 48, 24, 16 and 12; an expert takes at most 25 times the factor."""
    whole = (48, 24, 16, 12)
    assert tokens(ZIPF, 4, 100) == whole
    most = math.ceil(25 * factor)
    assert tokens(ZIPF, 4, 100, factor) == tuple(min(n, most) for n in whole)
    assert dropped(ZIPF, 4, 100, factor) == pytest.approx((48 - min(48, most)) / 100)


def test_capacity_is_in_whole_tokens_rounded_up() -> None:
    assert tokens(ZIPF, 4, 50, 1.1) == (14, 12, 8, 6)  # 13.75
