"""Parallel steps on CPU processes: threads that share cores, costs, and predictions from others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim.graph import Builder, Communication, Compute, Fixed, Graph
from traces.cpu_steps import CpuRun, Leaf, Moved, RankStep
from validation.processes.compared import OURS
from validation.processes.cores import CollectiveCost, Priced, on_cores
from validation.processes.predict import Spreads, drawn
from validation.processes.steps import errors as parallel
from validation.processes.steps import host
from validation.processes.steps.align import causes, message_rows, order_violations, thread_rows
from validation.processes.steps.costs import Costs, kernel_seconds, messages, sent
from validation.processes.steps.fit import fit
from validation.processes.steps.groups import GROUPS, REST, of_kernel, of_leaf
from validation.processes.steps.job import graph, one_by_one
from validation.processes.steps.predict import exposed, figures, predict, step

pytestmark = pytest.mark.slow

SIZES = {
    "blocks": 3, "d": 64, "heads": 4, "ffn": 256, "seq": 32, "mb": 3, "vocab": 0,
    "activation": "gelu", "optimizer": "SGD", "bucket_bytes": 2**20,
}  # fmt: skip
ELEMENTS = 12 * 64**2 + 13 * 64  # of one block


def overlapped() -> Graph:
    """Two ranks: 5 s, then 4 s beside a collective, then 1 s that waits for it."""
    b = Builder()
    work = Communication("all_reduce", 8.0, (0, 1), "dp")
    first = [b.add("first", r, "compute", Fixed(5.0)) for r in (0, 1)]
    moved = [b.add("sum", r, "dp", work, [first[r]]) for r in (0, 1)]
    b.join(moved)
    for r in (0, 1):
        b.add("beside", r, "compute", Fixed(4.0))
        b.add("last", r, "compute", Fixed(1.0), [moved[r]])
    return b.graph()


SECONDS = np.array([5.0, 5.0, 0.0, 0.0, 4.0, 1.0, 4.0, 1.0])


@pytest.mark.parametrize(
    ("cores", "moved", "beside"),
    [
        (4, 8.5, 9.0),  # nobody waits for a core
        (2, 11.5, 12.0),  # 0.5 s alone, then four threads on two cores: 3 s take 6
        (1, 22.5, 24.0),  # 5 s take 10; 0.5 s of 4 left at half speed, then a quarter each
    ],
)
def test_threads_share_cores_evenly(cores, moved, beside):
    ran = on_cores(Priced(overlapped(), cores, SECONDS, [CollectiveCost(0.5, 3.0)]))
    assert ran.end[2] == ran.end[3] == pytest.approx(moved)
    assert ran.end[4] == ran.end[6] == pytest.approx(beside)
    assert ran.end[5] == pytest.approx(beside + (1.0 if cores > 1 else 2.0))


def test_draws_multiply_every_cost():
    """All ops of a rank twice, one of them three times that, collectives five times."""
    of = Priced(overlapped(), 2, SECONDS, [CollectiveCost(0.5, 3.0)])
    made = drawn(of, Spreads([(np.array([4]), [3.0])], messages=[5.0], ranks=[2.0]), seed=0)
    assert made.seconds.tolist() == [10.0, 10.0, 0.0, 0.0, 24.0, 2.0, 8.0, 2.0]
    assert made.messages == [CollectiveCost(2.5, 15.0)]


def test_a_thread_alone_takes_no_more_than_its_core():
    b = Builder()
    b.add("only", 0, "compute", Fixed(5.0))
    ran = on_cores(Priced(b.graph(), 8, np.array([5.0]), []))
    assert ran.end.tolist() == [5.0]


def test_groups_of_other_ranks_do_not_wait_for_each_other():
    """Two pairs on eight cores: each all-reduce takes its 3 s, both at once."""
    b = Builder()
    for pair in ((0, 1), (2, 3)):
        work = Communication("all_reduce", 8.0, pair, "dp")
        b.join([b.add("sum", rank, "dp", work) for rank in pair])
    ran = on_cores(Priced(b.graph(), 8, np.zeros(4), [CollectiveCost(0.0, 3.0)] * 2))
    assert ran.end.tolist() == [3.0] * 4


def test_calls_that_block_run_one_by_one():
    """The collective and what was beside it come one after the other: 5 + 3.5 + 4 + 1."""
    of = one_by_one(overlapped())
    ran = on_cores(Priced(of, 2, SECONDS, [CollectiveCost(0.5, 3.0)]))
    assert ran.end.max() == pytest.approx(13.5)


def test_exposed_communication_is_what_the_thread_does_not_compute_beside():
    ran = on_cores(Priced(overlapped(), 4, SECONDS, [CollectiveCost(0.5, 7.0)]))
    for row in figures(ran):  # until 12.5, beside 5 to 9
        assert (row.busy_s, row.moving_s) == pytest.approx((10.0, 7.5))
        assert row.exposed_s == pytest.approx(3.5)


@pytest.mark.parametrize("mode", ["ddp", "fsdp2", "tp"])
def test_graphs_send_what_torch_does(mode):
    """DDP all gradients; FSDP2 a block three times; TP the activations four times per block."""
    of = graph(mode, 2, SIZES)
    works = [of.works[w] for w in of.part_work.tolist()]
    found = [(w.collective, w.bytes) for w in works if isinstance(w, Communication)]
    block, tokens = 4.0 * ELEMENTS, 4.0 * 3 * 32 * 64
    if mode == "ddp":
        assert {kind for kind, _ in found} == {"all_reduce"}
        assert sum(size for _, size in found) == 3 * block
    elif mode == "tp":
        assert found == [("all_reduce", tokens)] * 12
    else:
        kinds = [kind for kind, _ in found]
        assert (kinds.count("all_gather"), kinds.count("reduce_scatter")) == (6, 3)
        assert {size for _, size in found} == {block}


def test_mlps_alone_have_no_attention_and_no_gradient_of_their_input():
    of = graph("tp", 2, {**SIZES, "heads": 0})
    names = {of.names[k] for k in np.unique(of.name)}
    assert not [n for n in names if n.startswith(("qkv", "attention", "projection", "mlp_norm"))]
    assert len(of.part_work) == 2 * 3 - 1  # the first block's input needs no gradient
    first = [i for i in range(len(of)) if of.names[of.name[i]] == "fc1_dgrad" and not of.layer[i]]
    assert not first


def test_gloo_sends_a_ring():
    """Two ranks: an all-reduce sends the buffer once, a gather half; reduce-scatter is the former;
    four ranks: 2 x 3/4 and 3/4."""
    assert sent(Communication("all_reduce", 8.0, (0, 1), "")) == 8.0
    assert sent(Communication("reduce_scatter", 8.0, (0, 1), "")) == 8.0
    assert sent(Communication("all_gather", 8.0, (0, 1, 2, 3), "")) == 6.0
    with pytest.raises(ValueError, match="all_to_all is not known"):
        sent(Communication("all_to_all", 8.0, (0, 1), ""))


COSTS = Costs(
    rates={**dict.fromkeys((*GROUPS, REST), 0.0), "gemm": 2e-9, "attention": 4e-9,
           "activation": 3e-9, REST: 1e-10, "bucket_copy": 5e-10, "shard_copy": 7e-10},
    host={host.PLAIN: 20e-6, host.UNIT: 300e-6, host.TENSOR: 90e-6},
    gloo={"reduce": (200e-6, 1e-9, 1e-6), "gather": (300e-6, 2e-9, 5e-7)}, busier=1.0,
    cores=2, sources={},
)  # fmt: skip


def recorded(mode: str, sizes: dict, costs: Costs, name: str) -> CpuRun:
    """A recording of exactly what these costs give: what a fit must find again."""
    of = graph(mode, 2, sizes)
    ran = step(of, costs, mode)
    total = float(ran.end.max())
    rows = figures(ran)
    leaves: dict[tuple, float] = {}
    work_s = 0.0
    for kernel, work in host.of_rank(of):
        group = of_kernel(kernel, work)
        if not group:
            continue
        amount = work.flops if group in ("gemm", "attention", "attention_backward") else work.bytes
        leaf = TORCH[group](mode)
        leaves[leaf] = leaves.get(leaf, 0.0) + costs.rates[group] * amount
        work_s += costs.rates[group] * amount
        if group == "gemm":
            leaves[EXTRA] = leaves.get(EXTRA, 0.0) + costs.rates[REST] * work.bytes
            work_s += costs.rates[REST] * work.bytes
    around = kernel_seconds(of, costs, mode).sum() / 2 - work_s
    sums = messages(of, costs)
    begins: dict[int, float] = {}
    for i in np.flatnonzero(np.diff(of.part_start)).tolist():
        part = int(of.parts(i)[0])
        begins[part] = max(begins.get(part, 0.0), float(ran.start[i]))
    works = [of.works[w] for w in of.part_work.tolist()]
    order = sorted(begins, key=begins.get)
    moved = [
        Moved(0, k, works[p].collective, works[p].bytes, float(k),
              float(k) + sums[p].latency + sums[p].busy, float(k), 0.0)
        for k, p in enumerate(order)
    ]  # fmt: skip
    return CpuRun(
        name, mode, 2, sizes, (total,) * 10, (total,),
        tuple(Leaf(*key, "forward", 1.0, s, s, 10) for key, s in leaves.items() if s),
        tuple(moved),
        tuple(RankStep(0, r.rank, total, work_s, around, r.exposed_s, r.moving_s, r.exposed_s, 0.0)
              for r in rows),
        name, {},
    )  # fmt: skip


TORCH = {
    "gemm": lambda _: ("aten::mm", ((96, 64), (64, 64))),
    "attention": lambda _: ("aten::_scaled_dot_product_flash_attention_for_cpu", ((3, 4, 32, 16),)),
    "attention_backward": lambda _: (
        "aten::_scaled_dot_product_flash_attention_for_cpu_backward", ((3, 4, 32, 16),)
    ),
    "norm": lambda _: ("aten::native_layer_norm", ((3, 32, 64),)),
    "norm_backward": lambda _: ("aten::native_layer_norm_backward", ((3, 32, 64),)),
    "activation": lambda _: ("aten::gelu", ((3, 32, 256),)),
    "activation_backward": lambda _: ("aten::gelu_backward", ((3, 32, 256),)),
    "add": lambda _: ("aten::add", ((3, 32, 64), (3, 32, 64))),
    "sum": lambda _: ("aten::sum", ((96, 64),)),
    "bucket_copy": lambda _: ("aten::copy_", ((64, 64), (64, 64))),
    "shard_copy": lambda _: ("aten::copy_", ((64, 64), (64, 64))),
    "optimizer": lambda _: ("aten::nothing", ()),
}  # fmt: skip
EXTRA = ("aten::fill_", ((3, 32, 64),))


@pytest.fixture(scope="module")
def runs() -> list[CpuRun]:
    wide, narrow = ({**SIZES, "blocks": 2, "d": d, "ffn": 4 * d} for d in (96, 32))
    flat = {**SIZES, "blocks": 2, "d": 48, "ffn": 192}
    return [
        recorded(mode, sizes, COSTS, f"{mode}{k}")
        for k, sizes in enumerate((SIZES, wide, narrow, flat))
        for mode in ("ddp", "fsdp2", "tp")
    ]


def test_a_fit_finds_the_costs_again_and_predicts_what_it_has_not_seen(runs):
    found = fit(runs[3:])
    for group in ("gemm", "attention", "activation", "bucket_copy", "shard_copy", REST):
        assert found.rates[group] == pytest.approx(COSTS.rates[group], rel=1e-9), group
    assert found.host == pytest.approx(COSTS.host, rel=1e-6)
    assert found.gloo["reduce"] == pytest.approx(COSTS.gloo["reduce"], rel=1e-3)
    assert found.gloo["gather"] == pytest.approx(COSTS.gloo["gather"], rel=1e-3)
    assert found.busier == 1.0
    for run in runs[:3]:
        of = graph(run.mode, 2, run.config)
        one = predict(of, found, run.mode, draws=3)
        assert one.seconds == pytest.approx(run.step_s[0], rel=1e-3), run.mode
        assert np.median(exposed(one)) == pytest.approx(run.ranks[0].exposed_s, rel=2e-2, abs=1e-5)


@pytest.mark.parametrize(("cores", "share"), [(2, 0.5), (3, 0.25), (4, 0.0)])
def test_a_fit_takes_off_what_slows_a_collective(runs, cores, share):
    """Beside two threads that compute, gloo's two have half of two cores, three quarters of three.

    One that waits for another of its own says nothing, however long it takes.
    """

    def slowed(run: CpuRun) -> CpuRun:
        found = []
        for k, one in enumerate(run.moved):
            begin, beside = 10.0 * k, 1e-3 * (k + 1)
            end = begin + one.end_s - one.begin_s + share * beside
            found += [
                one._replace(number=2 * k, begin_s=begin, end_s=end, computing_s=beside),
                one._replace(number=2 * k + 1, begin_s=begin + 1e-6, end_s=begin + 5.0),
            ]
        return replace(run, moved=tuple(found), facts={"machine": {"cores": cores}})

    found = fit([slowed(run) for run in runs[3:]])
    assert found.cores == cores
    for kind in ("reduce", "gather"):
        assert found.gloo[kind] == pytest.approx(COSTS.gloo[kind], rel=1e-3)


def test_a_fit_prefers_operators_alone_and_stretches_to_timed_steps(runs):
    """Twice the mean changes nothing where some ran alone; timed steps took a quarter more."""

    def other(run: CpuRun) -> CpuRun:
        leaves = tuple(leaf._replace(mean_s=2 * leaf.mean_s) for leaf in run.leaves)
        return replace(run, leaves=leaves, step_s=tuple(1.25 * s for s in run.step_s))

    found, usual = fit([other(run) for run in runs[3:]]), fit(runs[3:])
    assert found.rates == usual.rates
    assert found.busier == pytest.approx(1.25)
    for run in runs[:3]:
        longer, of = (predict(graph(run.mode, 2, run.config), costs, run.mode, draws=0)
                      for costs in (found, usual))  # fmt: skip
        assert longer.seconds == pytest.approx(1.25 * of.seconds)


def test_what_differs_has_its_cause(runs):
    """Products that take twice as long are the cost model's, and all causes add up."""
    run = runs[1]
    slow = replace(COSTS, rates={**COSTS.rates, "gemm": 4e-9})
    of = graph("fsdp2", 2, run.config)
    ran = step(of, slow, "fsdp2")
    rows = thread_rows(run, slow, "fsdp2", ran)
    why = causes(rows, run.step_s[0], float(ran.end.max()), 1.0)
    products = sum(w.flops for n, w in host.of_rank(of) if of_kernel(n, w) == "gemm") * 2e-9
    assert why["cost model"] == pytest.approx(-products)
    assert sum(why.values()) == pytest.approx(run.step_s[0])
    assert abs(why["rest"]) < 1e-9 + abs(why["cost model"]) * 1e-6


def test_collectives_are_compared_kind_by_kind_and_in_order(runs):
    run = runs[1]
    ran = step(graph("fsdp2", 2, run.config), COSTS, "fsdp2")
    for row in message_rows(run, ran):
        assert row.recorded == pytest.approx(row.predicted), row.name
    assert order_violations(run, ran) == []
    other = replace(run, moved=(run.moved[-1]._replace(number=0), *run.moved[:-1]))
    assert order_violations(other, ran) == [
        "step 0: collective 0 was reduce_scatter, but ours is all_gather"
    ]
    assert order_violations(replace(run, moved=run.moved[:-1]), ran) == [
        "step 0: 8 collectives ran, but ours has 9"
    ]


def test_an_operator_goes_where_its_work_is():
    config = {"mb": 3, "seq": 32, "d": 64}

    def leaf(name: str, *shapes: tuple[int, ...], inside: str = "backward") -> Leaf:
        return Leaf(name, shapes, inside, 1.0, 1e-3, 1e-3, 1)

    assert of_leaf(leaf("aten::addmm", (64,), (96, 64)), config, "ddp") == "gemm"
    assert of_leaf(leaf("aten::add_", (3, 32, 64), (3, 32, 64)), config, "ddp") == "add"
    assert of_leaf(leaf("aten::copy_", (256, 64), (256, 64)), config, "ddp") == "bucket_copy"
    assert of_leaf(leaf("aten::copy_", (256, 64), (256, 64)), config, "fsdp2") == "shard_copy"
    assert of_leaf(leaf("aten::copy_", (96, 64), (96, 64)), config, "ddp") == REST
    assert of_leaf(leaf("aten::add_", (256, 64), inside="optimizer"), config, "ddp") == "optimizer"


def test_kernels_without_an_operator_of_torch_are_refused():
    with pytest.raises(ValueError, match="no operator of torch is known for the kernel rope"):
        of_kernel("rope", Compute("softmax", 0.0, 8.0))


def test_python_of_a_mode_that_no_recording_shows_is_said(runs):
    costs = fit(runs[:1])  # DDP alone
    with pytest.raises(ValueError, match=r"nothing is known about what Python costs in tp"):
        step(graph("tp", 2, SIZES), costs, "tp")
    with pytest.raises(ValueError, match="there is none"):
        fit([])


def test_the_fake_group_shows_python_of_units_and_tensors(shared: Path):
    """The trace's own FSDP marks and dispatch: between 0.1 and 10 ms of each."""
    path = shared / "recorded/kineto/fakepg_fsdp2x8_tp8.json.gz"
    assert host.is_fake(path)
    assert not host.is_fake(path.with_name("ddp_rank0.json.gz"))
    found = host.of_fake(path)
    assert found.keys() == {host.UNIT, host.TENSOR}
    assert all(1e-4 < seconds < 1e-2 for seconds in found.values())


@pytest.mark.parametrize(
    ("name", "step_within", "exposed_within"),
    [
        ("fsdp2_8x256", 0.10, 0.15),
        ("fsdp2_4x192", 0.10, 0.15),
        ("tp_8x256", 0.10, 0.20),
        ("ddp_8x256", 0.10, None),  # what it exposes is chance: only that it is inside the interval
    ],
)
def test_recorded_steps_are_predicted_from_other_recordings(name, step_within, exposed_within):
    (found,) = parallel.validate([OURS / f"{name}.json.gz"], draws=15)
    run = parallel.summary([found])[0]
    assert name not in run["sources"]
    assert len(run["sources"]) == 11
    assert abs(run["error"]) < step_within
    assert run["order_violations"] == []
    if exposed_within is None:
        low, high = run["exposed"]["interval_s"]
        assert low <= run["exposed"]["measured"] <= high
    else:
        assert abs(run["exposed"]["error"]) < exposed_within
    assert sum(run["causes_s"].values()) == pytest.approx(run["measured"])


def test_a_copy_of_a_recording_is_no_source_of_it(tmp_path):
    """The same content under another name is left out; nothing else is there."""
    for name in ("one", "two"):
        (tmp_path / f"{name}.json.gz").write_bytes((OURS / "tp_4x192.json.gz").read_bytes())
    with pytest.raises(ValueError, match="cannot be predicted from itself"):
        parallel.validate([tmp_path / "one.json.gz"], draws=1)


def test_both_timelines_begin_together():
    (found,) = parallel.validate([OURS / "fsdp2_4x192.json.gz"], draws=1)
    lines = parallel.both(found)
    assert [*lines] == ["recorded", "predicted"]
    assert all(0.0 <= one.start.min() < 1e-4 for one in lines.values())
    assert lines["recorded"].end.max() == pytest.approx(found.measured, rel=0.1)


def test_the_command_predicts_a_recorded_step(traincast, tmp_path):
    picture, table = tmp_path / "one.png", tmp_path / "one.md"
    code, out, err = traincast(
        "validate", "recorded", OURS / "fsdp2_4x192.json.gz", "--draws", 3,
        "--plot", picture, "--out", table,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "fsdp2_4x192" in out
    assert "Python between" in out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert "| fsdp2_4x192 | fsdp2 | 12 + 12 |" in table.read_text()
    code, _, err = traincast("validate", "recorded", tmp_path)
    assert code == 2
    assert "Traceback" not in err


def test_what_cannot_be_predicted_does_not_keep_the_rest_from_it(tmp_path, traincast):
    """Of DDP's two sizes and one of TP, over whose Python nothing is known, DDP is predicted."""
    for name in ("ddp_4x192", "ddp_6x128", "tp_4x192"):
        (tmp_path / f"{name}.json.gz").write_bytes((OURS / f"{name}.json.gz").read_bytes())
    skipped: list[str] = []
    found = parallel.validate([tmp_path], draws=1, skipped=skipped)
    assert [one.run.name for one in found] == ["ddp_4x192", "ddp_6x128"]
    assert len(skipped) == 1
    assert "another recording of tp" in skipped[0]
    with pytest.raises(ValueError, match="another recording of tp"):
        parallel.validate([tmp_path], draws=1)
    code, out, err = traincast("validate", "recorded", tmp_path, "--draws", 1)
    assert (code, err) == (0, "")
    assert "not predicted: nothing is known about what Python costs in tp" in out


def test_folders_of_one_machine_serve_each_other(tmp_path):
    """Recordings of two folders that say the same of their machine, but for its load."""
    for name in ("tp_4x192", "tp_6x128"):
        (tmp_path / name).mkdir()
        content = (OURS / f"{name}.json.gz").read_bytes()
        (tmp_path / name / f"{name}.json.gz").write_bytes(content)
    found = parallel.validate([tmp_path / "tp_4x192", tmp_path / "tp_6x128"], draws=1)
    assert [[*one.costs.sources] for one in found] == [["tp_6x128"], ["tp_4x192"]]
    with pytest.raises(ValueError, match="from itself"):
        parallel.validate([tmp_path / "tp_4x192"], draws=1)
