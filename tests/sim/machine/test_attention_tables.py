"""Which constants price fused attention: a table per kernel, one for all, who chooses which."""

from types import SimpleNamespace

import pytest

from sim.graph import Compute
from sim.machine import cluster, kernels
from sim.machine.attention_tables import attention_constants
from sim.runs.run import run
from tests.recipes import parsed

ONE = {"quantisation": 0.0, "memory": 0.8, "fixed": 5.0}
SLOW = {"forward": {"64": 0.2, "128": 0.4}, "backward": {"64": 0.1}, "keys": 30.0, **ONE}
SLOW |= {"backward_keys": 60.0, "masked": 20.0}
FAST = {"forward": 0.8, "backward": 0.5, "keys": 100.0, **ONE}
TABLES = {"flash": "cudnn", "sdpa": "flash2", "cudnn": FAST, "flash2": SLOW}
OLD = {**FAST, "head_dim": 16.0}


def seconds(tables, by, *, s_k=100, pairs=5000.0, dim=96, backward=False):
    """The arithmetic seconds of 1 head with 100 queries on a GPU of 1 SM and 1,000 FLOP/s."""
    gpu = SimpleNamespace(
        sms=1, memory_bandwidth=1e9, peak={"bf16": 1e3}, costs={"attention": tables}
    )
    kind = "attention_backward" if backward else "attention"
    flops = (10.0 if backward else 4.0) * pairs * dim
    work = Compute(kind, flops, 1.0, (1, 1, 100, s_k, dim), "bf16", by)
    return kernels.compute_seconds(gpu, work)[0]


def test_a_kernel_with_shares_by_head_dimension_worked_by_hand():
    """Head dimension 96 lies half way from 64 to 128: 0.3 of 1,000 FLOP/s.

    Causal: 50 of 100 keys, and 20 more for the diagonal: 1 + (30 + 20) / 50. Each query meeting all
    keys: 1 + 30 / 100. Dimension 32 does the work of 64: a share of 0.1; 256 has that of 128.
    """
    assert seconds(TABLES, "flash2") == pytest.approx(4 * 5000 * 96 / 300 * 2.0)
    assert seconds(TABLES, "flash2", pairs=1e4) == pytest.approx(4 * 1e4 * 96 / 300 * 1.3)
    assert seconds(TABLES, "flash2", dim=32) == pytest.approx(4 * 5000 * 32 / 100 * 2.0)
    assert seconds(TABLES, "flash2", dim=256) == pytest.approx(4 * 5000 * 256 / 400 * 2.0)


def test_a_backward_has_keys_of_its_own_worked_by_hand():
    """1 + (60 + 20) / 50 at a share of 0.1; without backward_keys those of the forward."""
    assert seconds(TABLES, "flash2", backward=True) == pytest.approx(10 * 5000 * 96 / 100 * 2.6)
    assert seconds(TABLES, "cudnn", backward=True) == pytest.approx(10 * 5000 * 96 / 500 * 3.0)


@pytest.mark.parametrize(
    ("by", "kernel"), [("flash", "cudnn"), ("", "cudnn"), ("sdpa", "flash2"), ("flash2", "flash2")]
)
def test_who_chooses_has_the_table_of_the_kernel(by, kernel):
    assert seconds(TABLES, by) == seconds({kernel: TABLES[kernel]}, kernel)
    assert seconds(TABLES, "cudnn") != seconds(TABLES, "flash2")


@pytest.mark.parametrize("by", ["flash", "sdpa", "triton", "flash2", "flash3", "cudnn"])
def test_one_old_table_serves_all_kernels(by, tmp_path):
    """Also over a base that has tables by kernel: 0.8 at infinite sizes, 1 + 16/96, 1 + 100/50."""
    by_hand = 4 * 5000 * 96 / 800 * (1 + 16 / 96) * 3.0
    assert seconds(OLD, by) == pytest.approx(by_hand)
    assert seconds(TABLES | OLD, by) == pytest.approx(by_hand)
    lines = [f"{key} = {value}" for key, value in OLD.items() if key != "fixed"]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(['base = "dgx_h100"\n[gpu.attention]', *lines, 'fixed = "5 us"\n']))
    assert seconds(cluster.load(path, 8).gpu.costs["attention"], by) == pytest.approx(by_hand)


def test_a_constant_for_all_kernels_changes_only_itself(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('base = "dgx_h100"\n[gpu.attention]\nsdpa = "cudnn"\nmasked = 0\n')
    mine, base = (cluster.load(where, 8).gpu.costs["attention"] for where in (path, "dgx_h100"))
    for kernel in ("triton", "flash2", "flash3", "cudnn"):
        without = attention_constants(base, kernel)._replace(masked=0.0)
        assert attention_constants(mine, kernel) == without
    assert attention_constants(mine, "sdpa") == attention_constants(mine, "cudnn")


def test_a_kernel_that_a_gpu_has_no_table_for_says_which_there_are():
    """The B200's topology takes no kernel of its base, an H100."""
    b200 = cluster.load("dgx_b200", 8).gpu.costs["attention"]
    assert b200.keys() == {"flash", "sdpa", "cudnn"}
    with pytest.raises(ValueError, match="may be flash, sdpa, cudnn"):
        attention_constants(b200, "flash2")
    tables = cluster.load("dgx_a100", 8).gpu.costs["attention"]
    with pytest.raises(ValueError, match=r"kernel 'flash3' on this GPU; model.attention may be fl"):
        attention_constants(tables, "flash3")
    with pytest.raises(ValueError, match=r"\[gpu.attention\] lacks backward, keys, quantisation"):
        attention_constants({"forward": 0.5}, "flash2")


def recipe(topology, attention, cp=1, **model):
    """Two layers of Llama 3 8B; context parallel ranks in a ring."""
    model = {"preset": "llama3-8b", "layers": 2, "attention": attention, **model}
    return parsed(model, 1, topology=topology, cp=cp)


MLA = {"qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "kv_lora_rank": 256}


@pytest.mark.parametrize(
    "model", [{}, {"cp": 2}, {"mla": MLA, "kv_heads": 32}], ids=["plain", "ring", "latent"]
)
def test_the_kernels_of_both_ways_carry_the_name(model):
    works = run(recipe("dgx_h100", "flash2", **model)).timeline.graph.works
    named = {(work.kind, work.by) for work in works if isinstance(work, Compute) and work.by}
    named.discard(("norm", "norm_backward"))
    assert named == {("attention", "flash2"), ("attention_backward", "flash2")}
    assert not [w for w in works if getattr(w, "kind", "").startswith("attention") and not w.by]


def test_a_model_under_fsdp_has_pytorchs_attention():
    """FSDP is PyTorch's; a preset or a key says otherwise."""
    for said, fsdp, kernel in (
        ({}, {}, "flash"),
        ({}, {"fsdp": {"kind": "fsdp2"}}, "sdpa"),
        ({"attention": "flash3"}, {"fsdp": {"kind": "fsdp2"}}, "flash3"),
        ({"preset": "gpt-22b"}, {"fsdp": {"kind": "fsdp2"}}, "unfused"),
    ):
        found = parsed({"preset": "llama3-8b", **said}, 2, gpus=2, **fsdp)
        assert found.model.attention == kernel


def step(topology, attention):
    """The step time of the layers on one GPU."""
    return run(recipe(topology, attention)).summary["step_time_s"]


def test_the_recipe_names_the_kernel():
    """H100: FlashAttention-3 before cuDNN's, then FlashAttention-2, then the kernels of 2023."""
    times = [step("dgx_h100", kernel) for kernel in ("cudnn", "flash2", "triton")]
    assert times == sorted(times)
    assert times[0] < times[1] < times[2]
    assert step("dgx_h100", "flash") == times[0]
    assert step("dgx_h100", "sdpa") == times[1]
    assert step("dgx_a100", "flash") == step("dgx_a100", "sdpa") == step("dgx_a100", "flash2")
