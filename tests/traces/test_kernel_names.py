"""What kernels do, by their names: the shipped rules, and those of a user's own file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from schedules.input_error import InputError
from traces.kernel_names import Sort, _shipped, rules, shipped
from traces.reading import read
from traces.recording import Selection

EP, TP, ANY = (Sort("communication", of) for of in ("ep", "tp", ""))
NAMES: dict[str, Sort] = {
    # transfers of experts, and what prepares them
    "void deep_ep::internode::dispatch<false, 8, true>(int4*)": EP,
    "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(int4*)": EP,
    "void deep_ep::internode_ll::dispatch<true, 3, 10, 7168>(void*)": EP,
    "_ZN7deep_ep9internode7combineILb0EEEvP4int4": EP,
    "void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*)": EP,
    "void dpsk::ep::internode::cached_notify<false>(int, int)": Sort("barrier"),
    "void deep_ep::internode_ll::clean_low_latency_buffer<1>(long*)": Sort("barrier"),
    "void pplx::a2a_kernels::a2a_dispatch_send_kernel<true>(int)": EP,
    "EpDispatchIntraNodeKernel_bf16": EP,
    "void tensorrt_llm::kernels::moeA2ADispatchKernel<8>()": EP,
    # libraries
    "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": ANY,
    "ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs)": ANY,
    "void ncclx::ctranKernelAllToAll(int)": ANY,
    "ncclKernelAllGatherCtranRing(int*)": ANY,
    "rcclGenericKernel<1>": ANY,
    "mscclKernel_Sum_half_Simple_Sum(int)": ANY,
    "void mscclpp::collective::allreduceRsAg<__half>(int)": ANY,
    "void nvshmemi_transfer_rma_p<float>()": ANY,
    "rocshmem_put_kernel": ANY,
    # symmetric memory
    "void c10d::symmetric_memory::barrier_kernel(unsigned int**)": Sort("barrier"),
    "void two_shot_all_reduce_kernel_inplace<__nv_bfloat16, 16, 8>(int)": TP,
    "void multimem_all_gather_kernel<16>(char*)": ANY,
    "void multimem_one_shot_reduce_kernel<c10::BFloat16, 16>(int)": ANY,
    # of frameworks
    "void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)": TP,
    "void quickreduce::allreduce_prototype_twoshot<__half>()": TP,
    "void tensorrt_llm::kernels::twoShotAllReduceKernel<half, 8, false>(int)": TP,
    "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()": TP,
    "void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(int)": TP,
    "void flashcomm::quantized_two_step<8>(int)": TP,
    "some_project::allToAllKernel<float>": ANY,
    # products with a transfer inside are products, and what Inductor fused with one is neither
    "cutlass::device_kernel<flux::GemmV3AgScatter<1>>": Sort("gemm"),
    "kernel_gemm_reduce_scatter_persistent": Sort("gemm"),
    "triton_poi_fused_all_reduce_wait_tensor_add_0": Sort("elementwise"),
    # computing
    "fc1_dgrad": Sort("gemm"),
    "expert_fc2_wgrad": Sort("gemm"),
    "attention_qkv_wgrad_fp8": Sort("attention"),
    "sm80_xmma_wgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc": Sort("convolution"),
    "void cudnn::cnn::wgrad_alg0_engine<float, 128>(int)": Sort("convolution"),
    "volta_scudnn_128x64_stridedB_splitK_xregs_large_nn_v1": Sort("convolution"),
    "igemm_wrw_gtcx3_nhwc_bf16_bx0_ex1_bt64x32x32": Sort("convolution"),
    "void convert_fp8_to_bf16<4>(int)": Sort("compute"),
    "void cudnn::ops::nchwToNhwcKernel<float>(int)": Sort("elementwise"),
    "void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)": Sort("index"),
    "void fbgemm_gpu::f8f8bf16_rowwise<1>(int)": Sort("gemm"),
    "split_embedding_backward_codegen_rowwise_adagrad_unweighted_kernel": Sort("embedding"),
    "flash_fwd_kernel": Sort("attention"),
    "void multi_tensor_apply_kernel<AdamFunctor<float>>": Sort("optimizer"),
    "dpsk::grouped_gemm::cuda::utils::fill_tensormaps_kernel(int)": Sort("elementwise"),
    "void layer_norm::ln_bwd_kernel<1>(int)": Sort("norm"),
    "Cijk_Ailk_Bljk_BBS_BH_MT32x32x64": Sort("gemm"),
    "void softmax_warp_forward<float, float, float, 10, true>(float*)": Sort("softmax"),
    "void cunn_ClassNLLCriterion_updateOutput_kernel<float>(float*)": Sort("cross_entropy"),
    "void embedding_dense_kernel(int)": Sort("embedding"),
    "void fused_dropout_kernel_vec<float>(int)": Sort("dropout"),
    "void max_pool_forward_nchw<float>(int)": Sort("pooling"),
    "void at::native::reduce_kernel<512, 1>(int)": Sort("reduction"),
    "void sbtopk::gatherTopK<float>(int)": Sort("index"),
    "rotary_kernel": Sort("elementwise"),
    "spin_kernel": Sort("compute"),
}


@pytest.mark.parametrize("name", list(NAMES))
def test_what_a_kernel_does(name: str) -> None:
    assert shipped().of(name) == NAMES[name]


def test_every_rule_is_the_first_for_some_kernel() -> None:
    """No rule stands behind others that leave it nothing."""
    every = [*_shipped()]
    used = {next((k for k, r in enumerate(every) if r.pattern.search(n)), -1) for n in NAMES}
    assert [every[k].pattern.pattern for k in range(len(every)) if k not in used] == []


def own(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "names.toml"
    path.write_text(text)
    return path


RULES = """
[[rule]]
name = '^my_(send|recv)'
kind = "communication"
dimension = "xp"

[[rule]]
name = 'gemm'
kind = "product"
"""


def test_rules_of_a_users_file_come_first(tmp_path: Path) -> None:
    both = rules(own(tmp_path, RULES))
    assert both.of("my_send_gemm") == Sort("communication", "xp")
    assert both.of("sm90_gemm") == Sort("product")
    assert both.of("flash_fwd") == Sort("attention")
    assert shipped().of("sm90_gemm") == Sort("gemm")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rule = [", "is not TOML"),
        ("", "holds nothing; tables .*rule.* would do"),
        ("rule = 3", "holds 'rule'; tables"),
        ("rule = [1, 2]", "holds 'rule'; tables"),
        ("[[rules]]\nname = 'a'", "holds 'rules'; tables"),
        ("[[rule]]\nnames = 'a'", "rule 1 has the unknown key 'names'; 'name' is near"),
        ("[[rule]]\nxyz = 'a'", "unknown key 'xyz'; there are name, kind, dimension, project"),
        ("[[rule]]\nname = 'a'", "rule 1 lacks kind"),
        ("[[rule]]\nname = ''\nkind = 'gemm'", "rule 1 lacks name"),
        ("[[rule]]\nname = 3\nkind = 'gemm'", "rule 1: name = 3 is no text"),
        ("[[rule]]\nname = '('\nkind = 'gemm'", r"rule 1: '\(' is no pattern: missing"),
        ("[[rule]]\nname = 'a'\nkind = 'host'", "kind = 'host' is not allowed; give a word of a-z"),
        ("[[rule]]\nname = 'a'\nkind = 'My kind'", "kind = 'My kind' is not allowed"),
        ("[[rule]]\nname='a'\nkind='communication'\ndimension='E P'", "dimension = 'E P' is not"),
        ("[[rule]]\nname='a'\nkind='gemm'\ndimension='tp'", "only communication has a dimension"),
    ],
)
def test_wrong_files_are_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        rules(own(tmp_path, text))


def test_files_that_are_none(tmp_path: Path, kineto, traincast: Callable[..., tuple]) -> None:
    binary = tmp_path / "names.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    trace = kineto.write(kineto.launched("gemm", 0, 10, 20, 1))
    for path in (binary, tmp_path, tmp_path / "none.toml"):
        code, _, said = traincast("analyze", trace, "--names", path)
        assert code == 2
        assert "cannot read the rules" in said


def test_commands_take_a_file(tmp_path: Path, kineto, traincast: Callable[..., tuple]) -> None:
    """A kernel of one's own is a transfer of its dimension, and "product" a kind for edits."""
    rows = [*kineto.launched("gemm", 0, 10, 40, 1), *kineto.launched("my_send", 6, 20, 30, 2, 8)]
    path, mine = kineto.write(rows), own(tmp_path, RULES)
    _, out, _ = traincast("analyze", path, "--names", mine, "--json")
    (overlap,) = json.loads(out)["overlap"]
    assert (overlap["dimension"], overlap["hidden_s"]) == ("xp", pytest.approx(30e-6))
    edit = "compute * 0.5 where kind=product"
    how = ("--hosts", "anchored", "--what-if", edit)
    _, out, _ = traincast("replay", path, "--names", mine, *how, "--json")
    assert json.loads(out)["what_if"][0]["step_s"] == pytest.approx(40e-6)


def test_formats_without_names_of_kernels_refuse_it(tmp_path: Path, kineto, shared: Path) -> None:
    path = shared / "stragglers"
    file = next(path.rglob("*.parquet"))
    with pytest.raises(InputError, match="read from traces of kineto and nsys, but this is"):
        read([file], Selection(names=own(tmp_path, RULES)))


LAYER = (  # on the stream of transfers: what DeepSeek's trace of a training step has in each layer
    ("dpsk::ep::internode::cached_notify<false>", 10),
    ("dpsk::ep::internode::dispatch<false, 8, true, 8>", 33),
    ("dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>", 1),
    ("dpsk::ep::internode::notify_dispatch<false, 8>", 14),
    ("dpsk::ep::internode::dispatch<false, 8, false, 8>", 46),
    ("dpsk::ep::internode::cached_notify<false>", 8),
    ("dpsk::ep::internode::combine<false, 8, __nv_bfloat16>", 65),
    ("dpsk::ep::internode::cached_notify<false>", 13),
    ("dpsk::ep::internode::combine<false, 8, __nv_bfloat16>", 60),
)


def test_a_step_with_deepseeks_own_names(kineto, traincast: Callable[..., tuple]) -> None:
    """Four layers of six transfers, of 219 us a layer, which products hide but for 6 in each."""
    rows, number, at = [], 0, 1000
    for layer in range(4):
        begin = at
        rows.append(kineto.event("user_annotation", "dispatch(F)", 10 * layer, 9))
        for name, us in LAYER:
            number += 1
            rows += kineto.launched(f"void {name}(int)", number, at, us, number, stream=27)
            at += us
        number += 1
        rows += kineto.launched("fp8_gemm", number, begin, at - 6 - begin, number)
    _, out, _ = traincast("analyze", kineto.write(rows), "--json")
    found = json.loads(out)
    assert found["collectives"] == 24
    (overlap,) = found["overlap"]
    assert overlap["dimension"] == "ep"
    assert overlap["moving_s"] == pytest.approx(4 * 219e-6)
    assert overlap["hidden_share"] == pytest.approx(213 / 219)


def test_the_case_of_deep_ep_under_both_names(
    shared: Path, kineto, traincast: Callable[..., tuple]
) -> None:
    text = (shared.parent / "cases/traces/4_deep_ep.json").read_text()
    for named in ("deep_ep::", "dpsk::ep::"):
        path = kineto.folder / "rank0.json"
        path.write_text(text.replace("deep_ep::", named))
        _, out, _ = traincast("analyze", path, "--json")
        found = json.loads(out)
        (overlap,) = found["overlap"]
        assert overlap["dimension"] == "ep"
        assert found["per_rank"][0]["overlap_share"] == pytest.approx(0.928, abs=1e-3)
        assert "communication ep" in found["critical_path"]["by_cause_s"]
        assert found["per_rank"][0]["communication_share"] == pytest.approx(0.059, abs=1e-3)


@pytest.mark.parametrize("runtime", ["mtia_runtime", "driver", "hpu_op", "privateuse1_runtime"])
def test_device_events_of_other_accelerators(kineto, runtime: str) -> None:
    """MTIA's are kernels to Kineto itself, and runtimes of all devices are calls."""
    rows = [
        kineto.event(runtime, "runtimeLaunch", 0, 5, correlation=1),
        kineto.event("mtia_ccp_events", "fba_matmul", 9, 30, 3, device=0, correlation=1),
    ]
    made = read([kineto.write(rows)])
    assert (made.counts["gpu_ops"], made.counts["gpu_ops_linked"]) == (1, 1)
    graph = made.timeline.graph
    assert graph.op(1).work.kind == "gemm"


def test_events_of_unknown_categories_are_named(kineto) -> None:
    """As those of a device that Kineto has learnt since; what only repeats others is not."""
    rows = [
        *kineto.launched("gemm", 0, 10, 20, 1),
        *(kineto.event("npu_workload", f"w{n}", n, 1) for n in range(3)),
        kineto.event("python_function", "f", 0, 9),
        kineto.event("gpu_user_annotation", "ProfilerStep#1", 0, 9),
    ]
    (said,) = read([kineto.write(rows)]).warnings
    assert "3 events of unknown categories left out: 'npu_workload' (3)" in said
