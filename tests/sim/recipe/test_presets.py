"""Presets and recipe_file.json files against the parameter counts that their authors publish."""

import json
import tomllib
from pathlib import Path

import pytest

from sim.model.sizes import Model, active_parameters, total_parameters
from sim.recipe import presets, recipe_file
from tests.recipes import tables
from tests.small import CONFIG as LLAMA3_8B
from traincast.commands.parts import starter


def read(section: dict, folder: Path = Path()) -> Model:
    return recipe_file.parse(tables(section, 1, topology="dgx_a100"), folder).architecture


def parameters(m: Model) -> int:
    """Counted matrix by matrix, without padding."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    attention = m.hidden * (q + 2 * kv) + m.qkv_bias * (q + 2 * kv) + q * m.hidden
    attention += {"head": 2 * m.head_dim, "whole": q + kv, "": 0}[m.qk_norm]
    if m.mla:
        attention = latent_attention(m)
    wide = (2 if m.gated else 1) * m.ffn
    mlp = m.hidden * wide + m.ffn * m.hidden
    biases = m.bias * (m.hidden + wide + m.hidden)
    norm = m.hidden * (2 if m.norm == "layer" else 1)
    tables = m.vocab * m.hidden * (1 if m.tied else 2) + m.positions * m.hidden
    each = attention + biases + 2 * norm
    if m.experts:
        dense, halves = m.dense_layers, 3 if m.gated else 2
        expert = halves * m.hidden * m.expert_ffn
        routed = m.hidden * m.experts + (m.experts + m.shared_experts) * expert
        return dense * (each + mlp) + (m.layers - dense) * (each + routed) + norm + tables
    return m.layers * (each + mlp) + norm + tables


def latent_attention(m: Model) -> int:
    """Matrices and norms of DeepSeek-V3's attention, named as in its checkpoint."""
    assert m.mla
    q_lora, kv_lora, nope, rope, v = m.mla
    q_a, q_b = m.hidden * q_lora + q_lora, q_lora * m.heads * (nope + rope)
    kv_a, kv_b = m.hidden * (kv_lora + rope) + kv_lora, kv_lora * m.heads * (nope + v)
    return q_a + q_b + kv_a + kv_b + m.heads * v * m.hidden


MISTRAL_7B = {"model_type": "mistral", "sliding_window": None}  # all else as the class has it
QWEN2_7B = {
    "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
    "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "vocab_size": 152064,
}  # fmt: skip
QWEN2_HALF_B = {
    "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_8B = {
    "model_type": "qwen3", "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_key_value_heads": 8,
}  # fmt: skip
QWEN3_HALF_B = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}  # fmt: skip

KIMI_K2 = {
    "model_type": "kimi_k2", "vocab_size": 163840, "num_attention_heads": 64,
    "num_key_value_heads": 64, "n_routed_experts": 384, "first_k_dense_replace": 1,
}  # fmt: skip
GLM_45 = {
    "model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288,
    "num_hidden_layers": 92, "head_dim": 128, "moe_intermediate_size": 1536,
    "n_routed_experts": 160, "first_k_dense_replace": 3, "attention_bias": True,
    "use_qk_norm": True,
}  # fmt: skip
PHI_4 = {
    "model_type": "phi3", "hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40,
    "num_attention_heads": 40, "num_key_value_heads": 10, "vocab_size": 100352,
}  # fmt: skip
QWEN3_30B_A3B = {"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128}


@pytest.mark.parametrize(
    ("stated", "count"),
    [  # as the model cards and transformers' num_parameters() give them
        ({"model_type": "gpt2"}, 124_439_808),
        ({"model_type": "gpt2", "n_layer": 48, "n_embd": 1600, "n_head": 25}, 1_557_611_200),
        (LLAMA3_8B, 8_030_261_248),
        (MISTRAL_7B, 7_241_732_096),
        (QWEN2_7B, 7_615_616_512),
        (QWEN2_HALF_B, 494_032_768),
        (QWEN3_8B, 8_190_735_360),
        ({"model_type": "mixtral"}, 46_702_792_704),
        (QWEN3_30B_A3B, 30_532_122_624),
        ({"model_type": "deepseek_v3"}, 671_026_404_352),  # no router's bias, 58 x 256 more
        (KIMI_K2, 1_026_408_209_408),
        (GLM_45, 352_797_814_784),
        ({"model_type": "glm4_moe", "attention_bias": True, "head_dim": 128}, 106_852_245_504),
        ({"model_type": "olmo2", "vocab_size": 100352}, 7_298_617_344),
        (PHI_4, 14_659_507_200),
        (QWEN3_HALF_B, 596_049_920),  # head_dim is not hidden / heads here
    ],
)  # fmt: skip
def test_a_hugging_face_config_has_the_published_parameters(stated, count, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(stated))
    assert parameters(read({"hf": "config.json", "sequence": 1024}, tmp_path)) == count
    assert parameters(read({"hf": ".", "sequence": 1024}, tmp_path)) == count  # the folder


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("llama2-7b", 6_738_415_616),
        ("llama2-70b", 68_976_648_192),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_620_634_112),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v3", 671_026_404_352),
        ("grok-1", 315_684_034_560),  # 314 B as announced
    ],
)
def test_a_preset_has_the_published_parameters(name, count):
    assert parameters(read({"preset": name})) == count


PUBLISHED = {  # as transformers' modelling code builds the language model; see the test below
    "llama4-scout": 107_769_861_120,
    "llama4-maverick": 400_711_848_960,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "kimi-k2": 1_026_408_209_408,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "gemma3-4b": 3_880_263_168,
    "gemma3-12b": 11_766_034_176,
    "gemma3-27b": 27_009_346_304,
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "olmo2-7b": 7_298_617_344,
    "olmo2-13b": 13_716_198_400,
    "olmo2-32b": 32_234_279_936,
    "phi-4": 14_659_507_200,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "nemotron-h-8b": 8_100_852_736,
    "nemotron-h-56b": 56_324_350_464,
    "jamba-1.5-mini": 51_570_323_328,
    "jamba-1.5-large": 398_555_145_696,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_preset_of_several_kinds_of_layers_has_every_parameter(name):
    assert total_parameters(read({"preset": name})) == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "billions"),  # arXiv:2508.10925, Table 1
    [("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)],
)
def test_a_preset_has_the_printed_active_billions_beside_its_embedding(name, billions):
    model = read({"preset": name})
    active = active_parameters(model) - model.vocab * model.hidden
    assert active / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize(
    ("name", "billions"),  # arXiv:2408.12570, Table 1
    [("jamba-1.5-mini", 12), ("jamba-1.5-large", 94)],
)
def test_a_preset_has_the_printed_active_billions(name, billions):
    assert active_parameters(read({"preset": name})) / 1e9 == pytest.approx(billions, abs=0.2)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt-1.5b", 1.5), ("gpt-6.2b", 6.2), ("gpt-14.6b", 14.6), ("gpt-28.3b", 28.3),
        ("gpt-22b", 22.0), ("gpt-145b", 145.6), ("gpt3-175b", 174.6), ("gpt-530b", 529.6),
        ("gpt-1t", 1008.0), ("nemotron-15b", 15.6),
    ],
)  # fmt: skip
def test_a_preset_has_the_printed_billions(name, billions):
    assert parameters(read({"preset": name})) / 1e9 == pytest.approx(billions, abs=0.08, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "billions", "active", "within"),
    [
        ("mixtral-8x7b", 46.7, 12.9, 0.05),
        ("mixtral-8x22b", 140.6, 39.1, 0.06),
        ("qwen3-235b-a22b", 235.1, 22.2, 0.05),
        ("deepseek-v3", 671, 37, 0.6),
        ("grok-1", 314, 314 / 4, 6),  # "25 % of the weights active on a given token"
    ],
)
def test_a_mixture_has_the_printed_billions_in_all_and_active(name, billions, active, within):
    model = read({"preset": name})
    assert total_parameters(model) == parameters(model)
    assert total_parameters(model) / 1e9 == pytest.approx(billions, abs=min(within, 2))
    assert active_parameters(model) / 1e9 == pytest.approx(active, abs=within)


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"num_experts": 4}, "model.topk = 8 is more than model.experts = 4"),
        ({"num_experts": None}, "num_experts is null"),
        ({"model_type": "deepseek_v3", "attention_bias": True}, "attention_bias = true is not"),
        ({"model_type": "deepseek_v3", "moe_layer_freq": 2}, "moe_layer_freq = 2 is not simulated"),
        ({"model_type": "glm4_moe", "use_qk_norm": "no"}, 'use_qk_norm = "no" is not simulated'),
        ({"model_type": "deepseek_v3", "kv_lora_rank": "512"}, "kv_lora_rank"),
        ({"model_type": "deepseek_v3", "num_key_value_heads": 8}, "model.kv_heads = 8 must be"),
    ],
)
def test_a_mixture_that_cannot_be_said_truly_is_refused(stated, sentence, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**QWEN3_30B_A3B, **stated}))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        read({"hf": "config.json", "sequence": 1024}, tmp_path)
    assert sentence in str(error.value)


def test_a_config_of_latent_attention_is_read_whole(tmp_path):
    """Queries without a latent, as DeepSeek-V2-Lite has them; no shared experts."""
    stated = {"model_type": "deepseek_v3", "q_lora_rank": None, "n_shared_experts": None}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    model = read({"hf": "config.json", "sequence": 1024}, tmp_path)
    assert model.mla == (0, 512, 128, 64, 128)
    assert (model.head_dim, model.kv_heads, model.shared_experts) == (192, 128, 0)
    assert (model.experts, model.topk, model.expert_ffn, model.dense_layers) == (256, 8, 2048, 3)


def test_no_split_is_proposed_for_experts_yet(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mixtral"}))
    with pytest.raises(ValueError, match="has experts; init cannot split these yet"):
        starter.propose(tmp_path / "config.json", "dgx_h100", None, tmp_path)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_names_its_source(name):
    raw = tomllib.loads((presets.MODELS / f"{name}.toml").read_text())
    assert "arXiv" in raw["source"] or "https://" in raw["source"]
    assert read({"preset": name}).name == name


def test_numbers_override_a_preset_and_what_follows_from_it():
    m = read({"preset": "gpt-22b", "hidden": 512, "heads": 8, "dropout": 0.0})
    assert (m.kv_heads, m.head_dim, m.ffn, m.layers, m.dropout) == (8, 64, 2048, 48, 0.0)


@pytest.mark.parametrize(
    ("stated", "sentence"),
    [
        ({"model_type": "mamba"}, 'model_type "mamba" is not simulated yet; there are deep'),
        ({}, "model_type null"),
        ({**LLAMA3_8B, "hidden_act": "tanh"}, 'hidden_act "tanh" is not simulated'),
        ({**LLAMA3_8B, "hidden_size": "big"}, 'hidden_size = "big" must be a whole number'),
        ({**LLAMA3_8B, "num_hidden_layers": 0}, "num_hidden_layers = 0 must be at least 1"),
        ({"model_type": "gpt2", "n_positions": 512}, "longer than the 512 positions"),
        ({"model_type": "mistral", "sliding_window": 256}, '"sliding"] and window = 256, or'),
        ([1], "it holds no table"),
    ],
)  # fmt: skip
def test_a_config_that_cannot_be_simulated_is_refused(stated, sentence, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        read({"hf": "config.json", "sequence": 1024}, tmp_path)
    assert sentence in str(error.value)


def test_what_is_no_config_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        read({"hf": "config.json", "sequence": 8}, tmp_path)
    with pytest.raises(ValueError, match="cannot read"):
        read({"hf": "other.json", "sequence": 8}, tmp_path)


GPT2 = {"model_type": "gpt2"}
COUNT = "must be at least 1"
WHOLE = "must be a whole number"
MALFORMED = [
    ({**LLAMA3_8B, "num_hidden_layers": None}, "num_hidden_layers is null; give its value"),
    ({**LLAMA3_8B, "num_hidden_layers": "32"}, f'num_hidden_layers = "32" {WHOLE}'),
    ({**LLAMA3_8B, "num_attention_heads": []}, f"num_attention_heads = [] {WHOLE}"),
    ({**LLAMA3_8B, "num_attention_heads": 0}, f"num_attention_heads = 0 {COUNT}"),
    ({**LLAMA3_8B, "num_key_value_heads": 0}, f"num_key_value_heads = 0 {COUNT}"),
    ({**LLAMA3_8B, "head_dim": -1}, f"head_dim = -1 {COUNT}"),
    ({**LLAMA3_8B, "hidden_size": 1.5}, f"hidden_size = 1.5 {WHOLE}"),
    ({**LLAMA3_8B, "vocab_size": 10**400}, "vocab_size = 1000"),
    ({**LLAMA3_8B, "intermediate_size": 10**20}, "must be at most 2,147,483,648"),
    ({**LLAMA3_8B, "mlp_bias": 3}, "mlp_bias = 3 must be true or false"),
    ({**LLAMA3_8B, "attention_bias": "x"}, 'attention_bias = "x" must be true or false'),
    ({**LLAMA3_8B, "hidden_act": ["silu"]}, 'hidden_act ["silu"] is not simulated'),
    ({**LLAMA3_8B, "_name_or_path": "\ud800"}, "_name_or_path"),
    ({**LLAMA3_8B, "sliding_window": "4096"}, 'sliding_window = "4096" must be a whole number'),
    ({**LLAMA3_8B, "use_sliding_window": 1}, "use_sliding_window = 1 must be true or false"),
    ({**GPT2, "n_embd": None}, "n_embd is null"),
    ({**GPT2, "n_inner": {}}, f"n_inner = {{}} {WHOLE}"),
    ({**GPT2, "resid_pdrop": 1.0}, "resid_pdrop = 1.0 must be less than 1"),
    ({"model_type": ["gpt2"]}, 'model_type ["gpt2"] is not simulated yet'),
    ({"model_type": 3}, "model_type 3 is not simulated yet"),
]


@pytest.mark.parametrize(("stated", "sentence"), MALFORMED)
def test_a_malformed_config_is_one_sentence_with_file_and_key(stated, sentence, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(stated))
    for call in (
        lambda: read({"hf": "config.json", "sequence": 8}, tmp_path),
        lambda: starter.propose(file, "dgx_a100", None, tmp_path),
    ):
        with pytest.raises(ValueError, match=r"^[^\n]{1,400}$") as error:
            call()
        assert str(error.value).startswith(str(file))
        assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 100_000, "too deeply to be read"),
        ('{"model_type": ' * 100_000, "too deeply to be read"),
        ('{"n": ' + "1" * 5000 + "}", "has a number with too many digits"),
        ("null", "it holds no table"),
        ("", "is not JSON"),
    ],
)
def test_what_is_hardly_json_is_refused(text, sentence, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=sentence):
        recipe_file.hugging_face(file)


@pytest.mark.parametrize("bad", [0, -5, 1.5, "8192", [], 10**20])
def test_positions_that_are_no_number_are_refused(bad, tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA3_8B, "max_position_embeddings": bad}))
    with pytest.raises(ValueError, match=r"config\.json: max_position_embeddings = .* must be"):
        starter.propose(file, "dgx_a100", None, tmp_path)
