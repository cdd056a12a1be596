"""A sample of replicas for all: against all of them, and against expected maxima from tables."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from schedules.input_error import InputError
from sim.builder.groups import Lane
from sim.engine import simulate
from sim.graph import Communication
from sim.machine.price import price
from sim.perturbations import perturbed
from sim.perturbations.lengths import skewness
from sim.recipe import recipe_file
from sim.runs.cut import cut
from sim.runs.fold import Lanes, loads
from sim.runs.latencies import exact
from sim.runs.latest import greatest, latest, parts
from sim.runs.meetings import held
from sim.runs.run import Result, build, job_of, prepare, run
from sim.runs.shared import cluster_of
from tests.recipes import tables

MODEL = {"layers": 1, "hidden": 512, "heads": 8, "vocab": 1024, "sequence": 512, "dropout": 0.0}


def recipe(noise: object, dp: int, **way: Any) -> dict[str, Any]:
    given = {key: way.pop(key) for key in ("seed", "steps") if key in way}
    way["schedule"] = {"name": way.pop("schedule")} if "schedule" in way else {}
    drawn = {"noise": noise} | ({"rank": way.pop("rank")} if "rank" in way else {})
    model, more = MODEL | way.pop("model", {}), way.pop("more", [])
    return tables(model, 2 * dp, drawn, *more, simulation=given, dp=dp, **way)


def simulated(sigma: object, dp: int, replicas: int = 0, **keys: Any) -> Result:
    noise = {"sigma": sigma, "replicas": replicas} if replicas else sigma
    return run(recipe_file.parse(recipe(noise, dp, **keys)))


def same(one: Result, two: Result) -> bool:
    a, b = one.timeline, two.timeline
    return np.array_equal(a.start, b.start) and np.array_equal(a.end, b.end)


@pytest.mark.parametrize(("count", "most"), [(50, 2.24907), (100, 2.50759), (200, 2.74604)])
def test_the_greatest_of_many_normal_ones_is_that_of_the_tables(count: int, most: float) -> None:
    """Of Harter (1961): expected maxima of 50, 100 and 200 normal deviates."""
    assert greatest(count, 0.0)[0] == pytest.approx(most, abs=0.005)


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_the_greatest_of_many_log_normal_ones(sigma: float) -> None:
    """A hundred kernels with such noise, four thousand times, over the spread of one."""
    square = math.expm1(sigma**2)
    found, variance = greatest(100, skewness(sigma))
    factors = np.exp(sigma * np.random.default_rng(0).standard_normal((4_000, 100)) - sigma**2 / 2)
    drawn = (factors.max(axis=1) - 1) / math.sqrt(square)
    assert found == pytest.approx(drawn.mean(), abs=4 * drawn.std() / math.sqrt(4_000) + 0.01)
    assert variance == pytest.approx(drawn.var(), rel=0.1)


@pytest.mark.slow
def test_the_last_of_all_is_within_its_error() -> None:
    """Over 200 samples of 9 of 64 normal deviates: right in the mean, 95 % within 1.96 errors."""
    draws = np.random.default_rng(1).standard_normal((200, 64))
    off = np.empty((200, 2))
    for k, row in enumerate(draws):
        last = [(len(part), max(part)) for part in parts(row[:9].tolist())]
        found = latest(last, 55, 0.0)
        off[k] = found.seconds - row.max(), found.error
    assert abs(off[:, 0].mean()) < 0.3
    assert 0.9 < np.mean(np.abs(off[:, 0]) <= 1.96 * off[:, 1]) < 0.99
    assert np.median(off[:, 1]) < 1.5


def test_the_last_of_all_without_a_spread_or_without_others() -> None:
    same = [(len(part), 2.0) for part in parts([2.0] * 9)]
    assert latest(same, 55, 0.0) == (2.0, 0.0)
    assert latest([(3, 4.0), (1, 1.0), (1, 4.0), (1, 3.0)], 0, 0.0) == (4.0, 0.0)


def test_a_cut_graph_is_that_of_its_replicas() -> None:
    """As built for these lanes alone, with other lanes and links of the whole machine."""
    read = recipe_file.parse(recipe(0.2, dp=4, tp=2, zero=1))
    cluster = cluster_of(read)
    job = job_of(read, cluster)
    _, graph, machine = prepare(job, cluster, fold=False)
    noise = perturbed(read, job).machine
    less = simulate(*cut(graph, noise(graph, machine), np.isin(graph.rank, [2, 3, 6, 7])))
    own = build(job, Lanes([Lane(t, 0, d) for t in (0, 1) for d in (1, 3)], (), ()))
    works = [work for work in own.works if isinstance(work, Communication)]
    found = loads(cluster, job, (), works)
    assert found is not None
    built = simulate(own, noise(own, price(own, cluster, dict(zip(works, found, strict=True)))))
    for rank in (2, 3, 6, 7):
        for times in ("start", "end"):
            one, two = (np.sort(getattr(of, times)[of.graph.rank == rank]) for of in (less, built))
            assert np.array_equal(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("job", [{}, {"zero": 1}, {"pp": 2, "model": {"layers": 2}}], ids=str)
def test_a_replica_that_is_held_back_makes_the_step_as_much_longer(job: dict[str, Any]) -> None:
    whole = simulated(0.1, dp=16, replicas=8, **job)
    replica = np.arange(whole.job.mesh.world)
    replica[whole.job.ranks] = np.arange(16)[:, None]
    for later in (1e-6, 1e-3):
        graph = held(whole.timeline, replica, later)
        seconds = simulate(graph, whole.machine).seconds
        assert seconds == pytest.approx(whole.timeline.seconds + later, rel=1e-6)


@pytest.mark.slow
def test_all_replicas_drawn_are_all_replicas() -> None:
    """And so are all but one, which then stands for itself."""
    whole = simulated(0.2, dp=9)
    for replicas in (8, 9):
        drawn = simulated(0.2, dp=9, replicas=replicas)
        assert same(whole, drawn)
        assert drawn.drawn is not None
        assert drawn.drawn.error == 0.0


@pytest.mark.slow
def test_no_noise_is_no_delay() -> None:
    """Factors that are all 1: the step of one replica that stands for all."""
    plain = run(recipe_file.parse(recipe(0.1, dp=12) | {"perturbations": []}))
    drawn = simulated([1.0], dp=12, replicas=8)
    assert drawn.timeline.seconds == pytest.approx(plain.timeline.seconds, rel=1e-12)
    assert drawn.drawn is not None
    assert drawn.drawn.error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.slow
def test_the_same_seed_draws_the_same() -> None:
    """To the bit; another seed draws other times."""
    one, two, other = (simulated(0.2, dp=12, replicas=8, seed=seed) for seed in (3, 3, 4))
    assert same(one, two)
    assert one.drawn is not None
    assert two.drawn is not None
    assert one.drawn.error == two.drawn.error
    assert not same(one, other)


def test_a_sample_is_later_than_its_replicas() -> None:
    """By what is expected of those left, of which one is simulated; the summary has the error."""
    found = simulated(0.2, dp=12, replicas=8)
    assert len(found.timeline.graph.ranks()) == 9
    figures = found.summary["simulation"]
    assert figures["replicas_drawn"] == 9
    assert 0 < figures["noise_error_s"] < 0.1 * found.timeline.seconds
    what = perturbed(found.recipe, found.job)
    graph = build(found.job, found.lanes)
    assert simulate(graph, what.machine(graph, found.machine)).seconds < found.timeline.seconds


def test_latencies_do_not_unfold_a_sample() -> None:
    """On Selene's fabric, some of the clones of one replica are farther apart than others."""
    read = recipe_file.parse(
        recipe({"sigma": 0.1, "replicas": 8}, dp=64, pp=4, model={"layers": 4})
        | {"cluster": {"topology": "selene", "gpus": 256}}
    )
    cluster = cluster_of(read)
    job = job_of(read, cluster)
    _, graph, machine = prepare(job, cluster, kinds=perturbed(read, job).kinds(), sample=True)
    assert len(graph.ranks()) == 9 * 4
    assert not exact(machine)


TWO = {"layers": 2, "tied": False}
JOBS = [
    {"overlap_grad_reduce": False},
    {"zero": 1},
    {"pp": 2, "model": TWO},
    {"tp": 2, "sp": True},
    {"pp": 2, "schedule": "zb_h2", "model": TWO},
]


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=str)
def test_a_sample_tells_the_step_of_all(job: dict[str, Any]) -> None:
    """Of 32, over 10 seeds: within 1.96 errors but for two, and within one in the mean."""
    whole, drawn, said = np.empty(10), np.empty(10), np.empty(10)
    for seed in range(10):
        whole[seed] = simulated(0.3, dp=32, seed=seed, **job).timeline.seconds
        found = simulated(0.3, dp=32, replicas=8, seed=seed, **job)
        assert found.drawn is not None
        drawn[seed] = found.timeline.seconds
        said[seed] = found.drawn.error
    assert np.sum(np.abs(drawn - whole) <= 1.96 * said) >= 8
    assert abs(drawn.mean() - whole.mean()) < said.mean()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"replicas": 33}, "= 33 is more than parallelism.dp = 32"),
        ({"replicas": 7}, "= 7 must be at least 8"),
        ({"rank": 3}, "does not go with a rank"),
        ({"more": [{"rank": 1, "compute": 2.0}]}, "does not go with other [[perturbations]]"),
        ({"zero": 2}, "does not go with parallelism.zero = 2"),
        ({"fsdp": {}}, "does not go with parallelism.fsdp"),
        ({"ep": 2, "model": {"experts": 8, "topk": 2}}, "does not go with parallelism.ep = 2"),
        ({"zero": 1, "optimizer_instances": 2}, "with parallelism.optimizer_instances = 2"),
        ({"pp": 2, "schedule": "pipedream", "model": {"layers": 2}},
         'with schedule.name = "pipedream"'),
        ({"steps": 2}, "does not go with simulation.steps = 2"),
    ],
    ids=str,
)  # fmt: skip
def test_samples_that_are_refused(keys: dict[str, Any], said: str) -> None:
    """In one sentence, which names the key."""
    noise = {"sigma": 0.1, "replicas": keys.pop("replicas", 16)}
    with pytest.raises(InputError) as caught:
        recipe_file.parse(recipe(noise, dp=32, **keys))
    assert str(caught.value).startswith("perturbations[0].noise.replicas ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        ({"sigma": 0.1}, "perturbations[0].noise.replicas is missing"),
        ({"sigma": 0.1, "replica": 16}, "perturbations[0].noise.replica; did you mean replicas?"),
        ({"sigma": 9.0, "replicas": 16}, "perturbations[0].noise.sigma = 9.0 must be at most 5"),
        ({"sigma": "a", "replicas": 16}, 'noise.sigma = "a" must be a number or a list'),
        ("a", 'perturbations[0].noise = "a" must be a number or a list'),
    ],
    ids=str,
)
def test_tables_of_noise_that_are_refused(noise: object, said: str) -> None:
    with pytest.raises(InputError) as caught:
        recipe_file.parse(recipe(noise, dp=32))
    assert said in str(caught.value)
