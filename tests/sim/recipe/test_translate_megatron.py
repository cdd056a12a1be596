"""Megatron-LM's arguments: each group of flags, whole recipes by hand, and what is refused."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sim.recipe import recipe_file
from sim.recipe.recipe import Recipe
from sim.recipe.translate.fates import Ignored
from traincast.main import app, main

SIZES = (
    "--num-layers 24 --hidden-size 4096 --num-attention-heads 32 --seq-length 2048 "
    "--vocab-size 50257 --micro-batch-size 2 --global-batch-size 64 --bf16"
)
CLUSTER = {"topology": "dgx_h100", "gpus": 32}
PP4 = "--pipeline-model-parallel-size 4"


def parse(more: str = "") -> Recipe:
    return recipe_file.parse({"megatron": f"{SIZES} {more}".split(), "cluster": CLUSTER})


SCRIPT = """#!/bin/bash
# Llama 3 8B, 4 ranks of the pipeline with 2 chunks
TP=2
PP=${PP:-4}
MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32
    --group-query-attention --num-query-groups 8
    --seq-length 8192
    --max-position-embeddings 8192
    --position-embedding-type rope
    --normalization RMSNorm --swiglu --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0 --hidden-dropout 0.0
    --vocab-size 128256
)
SPLIT="--tensor-model-parallel-size $TP --pipeline-model-parallel-size ${PP} \\
    --num-layers-per-virtual-pipeline-stage 4 --sequence-parallel \\
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
torchrun --nproc_per_node 8 pretrain_gpt.py \\
    "${MODEL_ARGS[@]}" \\
    $SPLIT \\
    --micro-batch-size 1 --global-batch-size 32 --bf16 \\
    --recompute-activations \\
    --lr 3e-4 --save $CKPT
"""
BY_HAND = """
[model]
layers = 32
hidden = 4096
heads = 32
kv_heads = 8
ffn = 14336
gated = true
activation = "silu"
vocab = 128256
tied = false
norm = "rms"
position = "rope"
sequence = 8192
[cluster]
topology = "dgx_h100"
gpus = 16
[parallelism]
tp = 2
pp = 4
sp = true
zero = 1
overlap_grad_reduce = true
overlap_param_gather = true
bucket_mb = 160  # 40 million fp32 gradients
p2p = "pair"
[schedule]
name = "interleaved_1f1b"
chunks = 2
[training]
micro_batch = 1
global_batch = 32
recompute = "selective"
weight_gradients = "cached"
[simulation]
host = "megatron"
"""
RECIPE = 'megatron = "train.sh"\n[cluster]\ntopology = "dgx_h100"\ngpus = 16\n'
BESIDE = {"train.sh": SCRIPT}


def test_a_script_is_the_recipe_that_one_would_write(recipe: Path) -> None:
    by_hand = recipe_file.parse(tomllib.loads(BY_HAND))
    assert recipe_file.dump(recipe_file.load(recipe)) == recipe_file.dump(by_hand)
    assert recipe_file.ignored(recipe) == {"train.sh": Ignored(["--lr", "--save"])}


def test_a_test_case_and_a_table_say_the_same_as_a_list(tmp_path: Path) -> None:
    words = SIZES.split()
    pairs = {"--num-layers": 24, "--bf16": True, "--fp16": False}
    pairs |= {k: int(v) for k, v in zip(words[2:-1:2], words[3:-1:2], strict=True)}
    lines = [f"  {k}: {str(v).lower()}" for k, v in pairs.items()]
    (tmp_path / "case.yaml").write_text("ENV: x\nMODEL_ARGS:\n" + "\n".join(lines) + "\n")
    for named in ("case.yaml", pairs):
        assert recipe_file.parse({"megatron": named, "cluster": CLUSTER}, tmp_path) == parse()


def test_the_recipes_own_keys_and_settings_override(recipe: Path) -> None:
    more = '[model]\nlayers = 8\n[training]\nrecompute = "full"\n[schedule]\nname = "gpipe"\n'
    recipe.write_text(RECIPE + more)
    job = recipe_file.load(
        recipe, {"parallelism.zero": 0, "parallelism.overlap_param_gather": False}
    )
    assert (job.model.layers, job.model.ffn, job.training.recompute) == (8, 14336, "full")
    assert (job.schedule.name, job.schedule.chunks) == ("gpipe", 1)  # chunks go with their name
    assert job.parallelism.zero == 0
    assert recipe_file.load(recipe, {"training.recompute": None}).training.recompute == "none"


def test_a_preset_of_the_recipe_takes_the_place_of_the_model(tmp_path: Path) -> None:
    words = ["--seq-length", 1024, "--micro-batch-size", 1, "--global-batch-size", 32]
    job = recipe_file.parse({"megatron": words, "cluster": CLUSTER, "model": {"preset": "gpt-22b"}})
    assert (job.model.hidden, job.model.sequence) == (6144, 1024)


REFUSED = {
    "--num-layers": "megatron: --num-layers takes a value, and none follows",
    "--num-layers many": 'megatron: --num-layers = "many" must be a whole number from 1',
    "--num-layers 0": 'megatron: --num-layers = "0" must be a whole number from 1',
    "--num-layers $L": 'megatron: --num-layers = "$L": the file does not assign $L; '
    "write the number",
    "--fp16": "megatron: --bf16 and --fp16 are both given; leave one of them out",
    "--swiglu --squared-relu": "megatron: --swiglu and --squared-relu are both given; "
    "leave one of them out",
    "--normalization X": "megatron: --normalization = X is not simulated; there are LayerNorm, "
    "RMSNorm",
    "--fp4-format e2m1": "megatron: --fp4-format describes another job (products in fp4 are not "
    "simulated), which is not translated; leave it out, or write the recipe by hand",
    "--tensor-model-paralel-size 4": "megatron: Megatron-LM has no --tensor-model-paralel-size; "
    "did you mean --tensor-model-parallel-size? --allow-unknown ignores unknown arguments",
    "--xyz --tp=4": "megatron: Megatron-LM has no --xyz (and 1 more); --allow-unknown ignores "
    "unknown arguments",
    f"{PP4} --use-torch-fsdp2": "megatron: --use-torch-fsdp2 does not go with "
    "--pipeline-model-parallel-size above 1",
    "--no-position-embedding": "megatron: --no-position-embedding is --position-embedding-type "
    "none now",
    "--overlap-param-gather": "megatron: --overlap-param-gather needs --overlap-grad-reduce",
    "--exp-avg-dtype bf16": "megatron: --exp-avg-dtype = bf16 needs "
    "--use-precision-aware-optimizer",
    "--use-precision-aware-optimizer": "megatron: --use-precision-aware-optimizer needs "
    "--use-distributed-optimizer",
    "--tp-comm-overlap": "megatron: --tp-comm-overlap needs --sequence-parallel",
    "--num-experts 8 --moe-layer-freq ([1]*3+[0]*2)": 'megatron: --moe-layer-freq = "([1]*3+'
    '[0]*2)" is not simulated; only first layers can be dense, such as ([0]*3+[1]*58)',
    f"{PP4} --num-layers-per-virtual-pipeline-stage 4": "megatron: "
    "--num-layers-per-virtual-pipeline-stage = 4 does not cut 24 layers evenly over 4 ranks",
    f"{PP4} --num-layers-per-virtual-pipeline-stage 3 --num-virtual-stages-per-pipeline-rank 2": (
        "megatron: --num-layers-per-virtual-pipeline-stage and "
        "--num-virtual-stages-per-pipeline-rank are both given; leave one of them out"
    ),
    f"{PP4} --pipeline-model-parallel-layout Et|x": "megatron: --pipeline-model-parallel-layout = "
    '"Et|x" is not a layout such as Et*3|(tt|)*6L',
    f"{PP4} --num-layers 4 --pipeline-model-parallel-layout Et|tt|tm|L": "megatron: "
    '--pipeline-model-parallel-layout = "Et|tt|tm|L" is not simulated: E must begin the first '
    "stage, and m and L must end the last",
    f"{PP4} --num-layers 22 --standalone-embedding-stage": "megatron: 22 layers cannot be spread "
    "evenly over 3 stages",
    f"{PP4} --pipeline-model-parallel-layout Et|t|t|tL": "megatron: "
    "--pipeline-model-parallel-layout has 4 layers in 4 stages, which does not fit "
    "--num-layers = 24 on 4 ranks",
    f"{PP4} --decoder-first-pipeline-num-layers 24": "megatron: "
    "--decoder-first-pipeline-num-layers leaves 0 layers for 3 ranks",
}


@pytest.mark.parametrize(("more", "said"), REFUSED.items())
def test_what_is_contradictory_or_missing_is_one_sentence(more: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        parse(more)


def test_a_size_that_is_not_given_is_named() -> None:
    for flag in ("--num-layers", "--hidden-size", "--seq-length", "--micro-batch-size"):
        words = SIZES.split()
        at = words.index(flag)
        with pytest.raises(ValueError, match=f"^megatron: {flag} is not given$"):
            recipe_file.parse({"megatron": words[:at] + words[at + 2 :], "cluster": CLUSTER})


@pytest.mark.parametrize(
    ("flags", "vocab", "padded"),
    [
        ("", 50257, 50304),  # pretrain_gpt.py's own tokenizer is GPT-2's; 393 x 128
        ("--tokenizer-type Llama2Tokenizer --tokenizer-model $DATA/tokenizer.model", 32000, 32000),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model meta-llama/Meta-Llama-3-8B",
         128256, 128256),
        ("--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen2.5-7B-Instruct",
         151665, 151680),  # 1,185 x 128
        ("--tokenizer-type TikTokenizer --tokenizer-model $X/vocab.json", 131072, 131072),
        ("--tokenizer-type NullTokenizer --vocab-size 1001", 1001, 1024),
        ("--tokenizer-type GPTSentencePieceTokenizer --tokenizer-model ${D}/nemotron_2_256k.model"
         " --make-vocab-size-divisible-by 3232", 256000, 258560),  # 80 x 3,232
    ],
)  # fmt: skip
def test_a_tokenizer_has_its_size(flags: str, vocab: int, padded: int) -> None:
    words = [*SIZES.replace("--vocab-size 50257 ", "").split(), *flags.split()]
    model = recipe_file.parse({"megatron": words, "cluster": CLUSTER}).model
    assert (model.vocab, -(-vocab // model.vocab_padding) * model.vocab_padding) == (vocab, padded)


def test_a_tokenizer_of_unknown_size_asks_for_one_line() -> None:
    """The recipe's own vocabulary is that line."""
    words = SIZES.replace("--vocab-size 50257 ", "").split()
    words += ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "me/mine"]
    said = r"the size of --tokenizer-model .me/mine. is not known; add --vocab-size, or vocab"
    with pytest.raises(ValueError, match=said):
        recipe_file.parse({"megatron": words, "cluster": CLUSTER})
    own = {"megatron": words, "cluster": CLUSTER, "model": {"vocab": 7000}}
    assert recipe_file.parse(own).model.vocab == 7000


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (7, "megatron = 7 must be the name of a file or a list of arguments"),
        ("", 'megatron = "" must be the name of a file or a list of arguments'),
        (["--a", []], "megatron has [], which must be a flag or a value"),
        ("no.sh", "cannot read megatron = no.sh: No such file or directory"),
    ],
)
def test_what_names_no_arguments_is_refused(named: object, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        recipe_file.parse({"megatron": named, "cluster": CLUSTER})


def test_both_programs_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="megatron and torchtitan are both given"):
        recipe_file.parse({"megatron": [], "torchtitan": "a.toml", "cluster": CLUSTER})


@pytest.mark.parametrize("content", [b"\x7fELF\x02\xff\xfe", b"\0" * 64, b"A='x", b"A=(--b", b""])
def test_a_malformed_file_is_one_sentence_and_exit_2(
    content: bytes, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (recipe.parent / "train.sh").write_bytes(content)
    with pytest.raises(SystemExit) as left:
        main(["check", str(recipe)])
    said = capsys.readouterr().err
    assert left.value.code == 2
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert "train.sh" in said


@pytest.mark.slow
@pytest.mark.parametrize("command", ["check", "run"])
def test_the_command_line_says_what_was_ignored(command: str, recipe: Path) -> None:
    recipe.write_text(RECIPE + "[model]\nlayers = 8\n")
    result = CliRunner().invoke(app, [command, str(recipe), "--json"])
    assert "ignored of train.sh: --lr, --save\n" in result.stderr
    assert json.loads(result.stdout)["ignored"] == {"train.sh": ["--lr", "--save"]}
    recipe.write_text(BY_HAND.replace("layers = 32", "layers = 8"))
    plain = CliRunner().invoke(app, [command, str(recipe), "--json"])
    assert "ignored" not in json.loads(plain.stdout)
    assert "ignored" not in plain.stderr


def test_many_harmless_arguments_are_counted_and_others_named(
    recipe: Path, traincast: Callable[..., tuple[int, str, str]]
) -> None:
    more = " --min-lr 0 --seed 1 --log-interval 9 --qk-layernorm --qk-l2-norm --xyz"
    script = recipe.parent / "train.sh"
    script.write_text(script.read_text().replace("--lr", f"{more} --lr"))
    code, _, said = traincast("check", recipe)
    assert (code, said.count("\n")) == (2, 1)
    assert "train.sh: Megatron-LM has no --xyz; --allow-unknown ignores unknown arguments" in said
    code, out, said = traincast("check", recipe, "--allow-unknown", "--json")
    assert code == 0
    assert said.splitlines() == [
        "ignored of train.sh: 5 arguments that change no step (--json names them)",
        "not simulated of train.sh: norms of queries and keys (--qk-layernorm --qk-l2-norm)",
        "not known, ignored of train.sh: --xyz",
    ]
    found = json.loads(out)
    assert len(found["ignored"]["train.sh"]) == 6
    assert list(found["not_simulated"]["train.sh"]) == ["--qk-layernorm", "--qk-l2-norm"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        ["run"],
        ["check"],
        ["compare", "--vary", "training.recompute=none"],
        ["sweep", "--vary=training.recompute=none", "--jobs=1", "--out={folder}/s.parquet"],
        ["diff", "{recipe}"],
    ],
)
def test_every_command_that_reads_recipes_allows_unknown_arguments(
    command: list[str], recipe: Path, traincast: Callable[..., tuple[int, str, str]]
) -> None:
    script = recipe.parent / "train.sh"
    script.write_text(script.read_text().replace("--lr", "--xyz 1 --lr"))
    recipe.write_text(RECIPE + "[model]\nlayers = 8\n")
    name, *more = [word.format(folder=recipe.parent, recipe=recipe) for word in command]
    assert traincast(name, recipe, *more)[0] == 2
    assert traincast(name, recipe, *more, "--allow-unknown")[0] == 0


def test_a_script_for_another_model_is_refused(recipe: Path) -> None:
    script = recipe.parent / "train.sh"
    script.write_text(script.read_text().replace("pretrain_gpt.py", "tools/pretrain_bert.py"))
    said = "train.sh: pretrain_bert.py does not train a decoder; other models are not simulated"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        recipe_file.load(recipe)
