"""ResNet-50 against published counts and hand formulas; SyncBatchNorm byte by byte."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest

from sim.builder.activations import layer_bytes, stage_bytes
from sim.builder.job import Job
from sim.builder.program import Collective
from sim.builder.shares import share
from sim.builder.stage import stage_programs
from sim.graph import Communication, Compute
from sim.machine import cluster, kernels
from sim.model.layer import layer
from sim.model.layers import convolution
from sim.model.resnet import forward_flops
from sim.model.sizes import Model, model_flops, parameters, total_parameters
from sim.recipe import recipe_file
from sim.runs.check import check
from sim.runs.run import Result, job_of, run
from sim.runs.stage_times import stage_timelines
from tests.recipes import tables
from tests.small import Keys, keys, small

N = 4  # images of a GPU
CHANNELS = [64] + 3 * [64, 64, 256] + [256] + 4 * [128, 128, 512] + [512]
CHANNELS += 6 * [256, 256, 1024] + [1024] + 3 * [512, 512, 2048] + [2048]


def recipe(gpus: int = 4, **keys: object) -> recipe_file.Recipe:
    given = {"topology": "dgx_a100", "training": {"micro_batch": N}}
    resnet = tables({"preset": "resnet-50"}, N * gpus, gpus=gpus, **given)
    return recipe_file.parse(resnet, overrides={k.replace("__", "."): v for k, v in keys.items()})


def simulated(gpus: int = 4, **keys: object) -> Result:
    return run(recipe(gpus, **keys))


def setting(**changes: object) -> Keys:
    return keys(1, False, N, 1, **changes)


@pytest.fixture(scope="module")
def net() -> Model:
    return recipe().architecture


def test_parameters_are_the_published_ones_group_by_group(net):
    """torchvision's resnet50: conv1 and bn1, layer1 to layer4, fc; 25,557,032 in all."""
    held = [parameters(net, 1, [i], False, False).total for i in range(17)]
    groups = [sum(held[a:b]) for a, b in pairwise((0, 1, 4, 8, 14, 17))]
    assert groups == [9_536, 215_808, 1_219_584, 7_098_368, 14_964_736]
    assert parameters(net, 1, [], False, True).total == 2_049_000
    assert total_parameters(net) == 25_557_032
    assert parameters(net, 1, range(17), True, True).norm == 2 * sum(CHANNELS)


def test_convolutions_are_those_of_table_1(net):
    """Channels in and out, kernel, output and stride, written down block by block."""
    expected = [(3, 64, 7, 112, 2)]
    inputs, size = 64, 56
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        stride = 1 if width == 64 else 2
        expected += [(inputs, width, 1, size, 1), (width, width, 3, size // stride, stride)]
        expected += [(width, 4 * width, 1, size // stride, 1)]
        expected += [(inputs, 4 * width, 1, size // stride, stride)]
        inputs, size = 4 * width, size // stride
        one = [(inputs, width, 1, size, 1), (width, width, 3, size, 1), (width, inputs, 1, size, 1)]
        expected += one * (count - 1)
    found = [tuple(conv)[1:] for i in range(17) for conv in net.resnet.convolutions(i)]
    assert found == expected
    assert sorted(outputs for _, outputs, *_ in found) == sorted(CHANNELS)


def test_forward_flops_are_the_published_4_09_billion_macs(net):
    """torchvision: resnet50 has 4.09 GFLOPS, counting a multiply-add once."""
    assert round(forward_flops(net.resnet) / 2e9, 2) == 4.09
    stem = 2 * 112**2 * 64 * 3 * 49
    assert model_flops(net, 7, 1) == 7 * (3 * forward_flops(net.resnet) - stem)


def test_kernels_have_the_flops_of_the_formula(net):
    """Forward, input and weight gradients have the same, but for images, which have no gradient."""
    programs = stage_programs(small(net, setting()), range(17), True, True)
    done = {k: sum(i.work.flops for i in items) for k, items in programs.items()}
    stem = N * 2 * 112**2 * 64 * 3 * 49
    assert done["F"] == done["W"] == done["I"] + stem == N * forward_flops(net.resnet)
    assert done["F"] + done["B"] == model_flops(net, N, 1)
    names = [item.name for item in programs["F"]]
    assert (names[0], names[-1]) == ("stem", "loss_log_softmax")
    assert len(names) == 53 * 2 + 49 + 16 + 1 + 1 + 2 + 2  # norms, ReLUs, sums, pools, head, loss


def test_a_strided_convolution_by_hand(net):
    """conv2 of the second group: 56 x 56 to 28 x 28 of 128 channels, 9 taps; x is read once."""
    ops = {op.name: op for op in layer(net, share(small(net, setting())), 4)}
    forward, back, weight = (
        getattr(ops["conv2"], part)[0].work for part in ("forward", "backward", "weight")
    )
    x, y, w = 2 * N * 56**2 * 128, 2 * N * 28**2 * 128, 2 * 128 * 128 * 9
    assert forward.shape == (1, N * 28**2, 128, 128 * 9)
    assert back.shape == (1, N * 56**2, 128, 128 * 9 // 4)
    assert weight.shape == (1, 128, 128 * 9, N * 28**2)
    assert (forward.bytes, back.bytes) == (x + w + y, x + w + y)
    assert weight.bytes == x + y + 2 * 4 * 128 * 128 * 9
    assert ops["conv2"].saved == x


def test_kernels_of_a_projecting_block_by_hand(net):
    """Bytes of its memory kernels in units of one output channel, 56 x 56 (stride 1)."""
    ops, unit = layer(net, share(small(net, setting())), 1), 2 * N * 56**2
    moved = {
        launch.name: launch.work.bytes / unit
        for op in ops
        for launch in (*op.forward, *op.backward)
        if launch.work.kind != "gemm"
    }
    assert moved == {
        "conv1_norm": 3 * 64, "conv1_norm_backward": 5 * 64,
        "conv1_relu": 2 * 64, "conv1_relu_backward": 3 * 64,
        "conv2_norm": 3 * 64, "conv2_norm_backward": 5 * 64,
        "conv2_relu": 2 * 64, "conv2_relu_backward": 3 * 64,
        "conv3_norm": 3 * 256, "conv3_norm_backward": 5 * 256,
        "projection_norm": 3 * 256, "projection_norm_backward": 5 * 256,
        "residual_add": 3 * 256, "conv3_relu": 2 * 256, "conv3_relu_backward": 3 * 256,
        "block_input_grad_add": 3 * 64,
    }  # fmt: skip


def test_the_stem_keeps_its_image_its_norms_input_and_what_is_pooled(net):
    """Indices of maxima have eight bytes each; a norm keeps two fp32 numbers per channel."""
    image, wide, pooled = 3 * 224**2, 64 * 112**2, 64 * 56**2
    assert (
        layer_bytes(small(net, setting()), 0) == N * (2 * (image + 2 * wide) + 8 * pooled) + 8 * 64
    )


def test_a_projecting_bottleneck_keeps_its_input_once(net):
    """Layer 4: 256 channels of 56 x 56 in, 512 of 28 x 28 out, width 128, stride in conv2."""
    large, little = 256 + 128 + 128, 128 + 128 + 512 + 512  # inputs of convs and norms at each size
    assert layer_bytes(small(net, setting()), 4) == 2 * N * (large * 56**2 + little * 28**2) + 8 * (
        128 + 128 + 512 + 512
    )


def test_a_bottleneck_keeps_what_is_counted_by_hand(net):
    """Layer 2, 256 channels of 56 x 56 in and out, width 64: inputs of convolutions and norms."""
    each = N * 56**2 * 2
    inputs, norms = (256 + 64 + 64) * each, (64 + 64 + 256) * each
    assert layer_bytes(small(net, setting()), 2) == inputs + norms + 8 * (64 + 64 + 256)
    head = N * 2 * (49 * 2048 + 2048) + 4 * N * 1000
    assert stage_bytes(small(net, setting()), range(17), True, True)["logits"] == head


def test_the_timeline_holds_what_check_says():
    said = check(recipe(2))["memory"][0]
    held = simulated(2).summary["memory"][0]
    assert held["by_category"] == said["by_category"]


# -- communication --------------------------------------------------------------------------------


def traffic(result: Result) -> dict[str, tuple[int, float]]:
    """Of rank 0, how many collectives of the dp group there are by name's ending, and bytes."""
    graph, out = result.timeline.graph, {"all_gather": (0, 0.0), "grad_all_reduce": (0, 0.0)}
    for op in (graph.op(i) for i in np.flatnonzero(graph.rank == 0)):
        if isinstance(op.work, Communication) and "_norm_" in op.name:
            kind = "all_gather" if op.name.endswith("all_gather") else "grad_all_reduce"
            assert len(op.work.ranks) > 1
            count, size = out[kind]
            out[kind] = count + 1, size + op.work.bytes
    return out


@pytest.mark.parametrize("gpus", [2, 4])
def test_synchronised_norms_send_what_torch_sends(gpus):
    """53 all-gathers of 2 C + 1 numbers from every rank, 53 all-reduces of 2 C; gradients besides.

    On the wire a rank sends (n - 1) / n of what is gathered and 2 (n - 1) / n of what is summed.
    """
    result = simulated(gpus, model__norm="sync_batch")
    gathered, summed = (4 * sum(2 * c + more for c in CHANNELS) for more in (1, 0))
    assert traffic(result) == {
        "all_gather": (53, gpus * gathered),
        "grad_all_reduce": (53, summed),
    }
    gradients = 4 * 25_557_032
    sent = (gpus - 1) * gathered + 2 * (gpus - 1) / gpus * (summed + gradients)
    assert result.summary["bytes_sent"]["dp"]["0"] == pytest.approx(sent, rel=1e-12)


@pytest.mark.parametrize(("dtype", "each"), [("fp32", 4), ("bf16", 2)])
def test_plain_norms_send_nothing_but_gradients(dtype, each):
    result = simulated(4, training__grad_dtype=dtype)
    assert traffic(result) == {"all_gather": (0, 0.0), "grad_all_reduce": (0, 0.0)}
    sent = 2 * 3 / 4 * each * 25_557_032
    assert result.summary["bytes_sent"]["dp"]["0"] == pytest.approx(sent, rel=1e-12)


def test_every_microbatch_synchronises_its_norms_and_the_last_reduces():
    keys = {"model__norm": "sync_batch", "training__global_batch": 3 * N * 2}
    result = simulated(2, **keys)
    assert {kind: count for kind, (count, _) in traffic(result).items()} == {
        "all_gather": 3 * 53,
        "grad_all_reduce": 3 * 53,
    }
    names = [op.name for op in map(result.timeline.graph.op, range(len(result.timeline.graph)))]
    assert names.count("grad_all_reduce") == 3  # 102 MB in buckets of 40 MB


def test_statistics_are_waited_for_on_the_stream_of_the_gradients(net):
    """The merge waits for the gather, which waits for this rank's statistics; so backward."""
    shared = replace(net, norm="sync_batch")
    programs = stage_programs(small(shared, setting(dp=2)), range(17), True, True)
    for kind, before, after in (
        ("F", "statistics", "merge"),
        ("B", "backward_reduce", "backward_elements"),
    ):
        items = programs[kind]
        found = [i for i, item in enumerate(items) if isinstance(item, Collective)]
        assert len(found) == 53
        for i in found:
            assert (items[i].axis, items[i].stream) == ("dp", "")
            assert items[i].needs == (i - 1,)
            assert items[i - 1].name.endswith(before)
            assert items[i + 1].name.endswith(after)
            assert items[i + 1].needs == (i,)


def test_synchronising_costs_time_that_nothing_hides():
    plain, shared = (simulated(8, model__norm=norm) for norm in ("batch", "sync_batch"))
    assert shared.summary["step_time_s"] > plain.summary["step_time_s"]
    exposed = [r.summary["time_s"]["exposed"]["dp"]["mean"] for r in (plain, shared)]
    timeline = shared.timeline
    moving = [
        timeline.end[i] - timeline.start[i]
        for i, op in enumerate(map(timeline.graph.op, range(len(timeline.graph))))
        if isinstance(op.work, Communication) and "_norm_" in op.name and op.phase == "F"
    ]
    assert exposed[1] - exposed[0] > sum(moving) > 0


def test_of_one_gpu_both_norms_are_the_same_graph():
    plain, shared = (simulated(1, model__norm=norm).timeline for norm in ("batch", "sync_batch"))
    same = [[(op.name, op.work) for op in map(t.graph.op, range(len(t.graph)))]
            for t in (plain, shared)]  # fmt: skip
    assert same[0] == same[1]
    assert np.array_equal(plain.end, shared.end)


def test_folded_and_unfolded_agree():
    folded, whole = (
        simulated(4, model__norm="sync_batch", simulation__fold=fold) for fold in ("auto", "none")
    )
    assert folded.timeline.graph.ranks().tolist() == [0]
    assert folded.timeline.seconds == pytest.approx(whole.timeline.seconds, rel=1e-9)


def test_buckets_hold_all_parameters_the_linear_first():
    """DDP's sizes: 1 MB first, which the linear of 8.2 MB fills alone, then 25 MB."""
    keys = {"parallelism__bucket_mb": 25.0, "parallelism__first_bucket_mb": 1.0}
    graph = simulated(2, **keys).timeline.graph
    found = [op for op in map(graph.op, range(len(graph))) if op.name == "grad_all_reduce"]
    assert found[0].work.bytes == 4 * 2049 * 1000
    assert sum(op.work.bytes for op in found) == 4 * 25_557_032
    assert all(op.work.bytes >= 25e6 for op in found[1:-1])


def test_zero_1_scatters_and_gathers_them():
    result = simulated(4, parallelism__zero=1, parallelism__overlap_param_gather=True)
    sent = 3 / 4 * (4 + 2) * 25_557_032
    assert result.summary["bytes_sent"]["dp"]["0"] == pytest.approx(sent, rel=1e-12)
    assert result.summary["memory"][0]["by_category"]["optimizer"] == 12 * 25_557_032 / 4


# -- recipes --------------------------------------------------------------------------------------


def test_a_sample_is_an_image_and_has_no_tokens():
    result = simulated(4)
    assert result.summary["samples_per_s"] == 4 * N / result.timeline.seconds
    assert "tokens_per_s" not in result.summary


def test_the_complete_recipe_is_read_back_equal():
    import tomllib

    first = recipe(2, model__norm="sync_batch", model__image=64)
    assert recipe_file.parse(tomllib.loads(recipe_file.dump(first))) == first
    assert first.architecture.resnet == (*((3, 4, 6, 3), 64, 1000),)


@pytest.mark.parametrize("blocks", [[1], [2, 1], [3, 4, 23, 3]])
def test_other_depths_run_and_agree_with_their_formula(blocks):
    """resnet101 has 44,549,160 parameters (torchvision)."""
    net = recipe(1, model__blocks=blocks, model__image=64).architecture
    programs = stage_programs(small(net, setting()), range(net.layers), True, True)
    assert sum(i.work.flops for k in "FB" for i in programs[k]) == model_flops(net, N, 1)
    if blocks == [3, 4, 23, 3]:
        assert total_parameters(net) == 44_549_160


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        *(({f"parallelism__{name}": 2}, f"{name} = 2 is not simulated with model.blocks")
          for name in ("tp", "pp", "cp", "ep", "etp")),
        ({"parallelism__zero": 3}, "zero = 3 is not simulated .* it must be 0 or 1"),
        ({"parallelism__fsdp": {"kind": "fsdp2"}}, "fsdp is not simulated with model.blocks"),
        ({"training__recompute": "full"}, 'recompute = "full" is not simulated with'),
        ({"schedule__name": "zb_v"}, "the schedule zb_v with 2 stages is not simulated with"),
        ({"model__sequence": 128}, "model.sequence is not a key of a model with model.blocks"),
        ({"model__norm": "layer"}, 'model.norm = "layer" is not simulated with model.blocks'),
        ({"model__image": 230}, "model.image = 230 is not a multiple of 32"),
        ({"model__layers": 16}, "model.layers = 16 is not 17, the stem and all of model.blocks"),
        ({"model__preset": "gpt-22b", "model__norm": "sync_batch"}, "needs model.blocks"),
        ({"model__preset": "gpt-22b", "model__image": 224}, "model.image needs model.blocks"),
        ({"model__preset": "gpt-22b", "model__classes": 10}, "model.classes needs model.blocks"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_in_a_sentence(keys, sentence):
    with pytest.raises(ValueError, match=f"^[^\n]*{sentence}[^\n]*$"):
        recipe(4, **keys)


def test_a_searched_schedule_and_stage_times_take_one_gpu_alone():
    job: Job = job_of(recipe(2, model__norm="sync_batch", schedule__name="zb_1p"))
    ran = stage_timelines(job, cluster.load("dgx_a100", 2), range(17), True, True)
    works = [work for timeline in ran.values() for work in timeline.graph.works]
    assert all(isinstance(work, Compute) for work in works)


@pytest.mark.parametrize("norm", ["batch", "sync_batch"])
@pytest.mark.parametrize("machine", ["dgx_a100", "dgx_h100", "dgx_b200"])
def test_every_kernel_has_a_price(net, machine, norm):
    gpu = cluster.load(machine, 8).gpu
    part = share(small(replace(net, norm=norm), setting(dp=8)))
    ops = [op for i in range(17) for op in convolution.layer(net.resnet, part, i)]
    for op, phase in product((*ops, *convolution.head(net.resnet, part)), range(1, 4)):
        for launch in op[phase]:
            _, memory, fixed = kernels.compute_seconds(gpu, launch.work)
            assert memory > 0
            assert fixed > 0
