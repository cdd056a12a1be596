"""Recipes: what is filled in, what is refused and in which words, dumps that read back equal."""

import tomllib
from itertools import product

import pytest

from schedules.input_error import InputError
from sim.builder.job import without_plan
from sim.keys import refusals
from sim.recipe import legality, recipe_file, translate
from sim.recipe.recipe import Recipe
from sim.recipe.refusals import SECTIONS, TABLES
from sim.recipe.sections import PerturbationSection

TEXT = """
model.preset = "gpt-22b"
cluster = { topology = "dgx_a100", gpus = 64 }
parallelism = { tp = 4, pp = 2 }
training.global_batch = 64
"""


def parse(**overrides: object) -> Recipe:
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    return recipe_file.parse(tomllib.loads(TEXT), overrides=settings)


def test_what_is_left_out_is_filled_in():
    recipe = parse(schedule__name="interleaved_1f1b")
    assert recipe.parallelism.dp == 8  # 64 / (4 x 2)
    assert recipe.microbatches == 8  # 64 / (1 x 8)
    assert recipe.stages == 4  # 2 ranks of 2 chunks
    assert recipe.layers_per_stage == (12, 12, 12, 12)
    assert recipe.sequence == recipe.architecture.positions == 2048
    assert recipe.parallelism.overlap_p2p
    assert not parse(parallelism__p2p="batched").parallelism.overlap_p2p


@pytest.mark.parametrize(
    ("overrides", "p2p", "overlaps"),
    [
        ({}, "batched", False),  # 1F1B as in Megatron-LM
        ({"schedule.name": "interleaved_1f1b"}, "pair", True),
        ({"schedule.name": "zb_h1"}, "pair", True),
        ({"schedule.name": "zb_h1", "parallelism.p2p": "auto"}, "pair", True),
        ({"schedule.name": "zb_h1", "parallelism.p2p": "batched"}, "batched", False),
        ({"schedule.name": "pipedream"}, "direction", True),
        ({"parallelism.overlap_p2p": True}, "pair", True),  # batches cannot overlap
        ({"parallelism.overlap_p2p": False, "schedule.name": "zb_h1"}, "pair", False),
    ],
)
def test_messages_go_as_the_runtime_of_the_schedule_sends_them(overrides, p2p, overlaps):
    """Unless the recipe fixes it for all schedules."""
    recipe = recipe_file.parse(tomllib.loads(TEXT), overrides=overrides)
    assert (recipe.parallelism.p2p, recipe.parallelism.overlap_p2p) == (p2p, overlaps)
    job = without_plan(recipe)
    assert (job.policy.name, job.policy.ahead) == (p2p, int(overlaps))


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"schedule.name": "interleaved_1f1b", "schedule.chunks": 3, "schedule.group": 4},
        {"schedule.layers_per_stage": [23, 25], "training.recompute": "full"},
        {"model.preset": "llama3-8b", "model.layers": 6, "parallelism.zero": 1},
    ],
)
def test_a_dump_reads_back_equal_and_complete(overrides, tmp_path):
    recipe = recipe_file.parse(tomllib.loads(TEXT), overrides=overrides)
    file = tmp_path / "recipe.toml"
    file.write_text(recipe_file.dump(recipe))
    assert recipe_file.load(file) == recipe
    assert recipe_file.dump(recipe_file.load(file)) == file.read_text()
    assert tomllib.loads(file.read_text())["parallelism"]["dp"] == 8


def test_paths_are_relative_to_the_recipe(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "gpt2.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "mine.toml").write_text("")
    file = tmp_path / "deep/recipe.toml"
    file.write_text(
        '[model]\nhf = "../gpt2.json"\nsequence = 512\n'
        '[cluster]\ntopology = "../mine.toml"\ngpus = 4\n[training]\nglobal_batch = 4\n'
    )
    recipe = recipe_file.load(file)
    assert recipe.architecture.hidden == 768
    assert recipe.cluster.topology == str(tmp_path / "mine.toml")
    moved = tmp_path / "copy.toml"
    moved.write_text(recipe_file.dump(recipe))  # stands by itself, wherever it is put
    assert recipe_file.load(moved) == recipe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parallelism.tp=4", ("parallelism.tp", 4)),
        ("parallelism.sp = true", ("parallelism.sp", True)),
        ("model.dropout=0.1", ("model.dropout", 0.1)),
        ("schedule.layers_per_stage=[3, 4]", ("schedule.layers_per_stage", [3, 4])),
        ("model.preset=gpt3-175b", ("model.preset", "gpt3-175b")),
        ('model.preset="gpt3-175b"', ("model.preset", "gpt3-175b")),
        ("model.name=a = b", ("model.name", "a = b")),
        ("parallelism.dp=", ("parallelism.dp", None)),
    ],
)
def test_set_takes_typed_values_and_bare_words(text, expected):
    assert recipe_file.setting(text) == expected


REFUSED = [
    ({"parallelism.tpp": 2}, "unknown key parallelism.tpp; did you mean parallelism.tp?"),
    ({"tp": 2}, "unknown key tp; did you mean parallelism.tp?"),
    ({"paralelism.tp": 2}, "unknown key paralelism.tp; did you mean parallelism.tp?"),
    ({"training.tp": 2}, "unknown key training.tp; did you mean parallelism.tp?"),
    ({"schedule.ahead": 2}, "unknown key schedule.ahead; [schedule] has chunks, csv, "),
    ({"model.qqqqqq": 2}, "unknown key model.qqqqqq; [model] has activation"),
    ({"parallelism.tp": "4"}, 'parallelism.tp = "4" must be a whole number'),
    ({"parallelism.tp": 4.0}, "parallelism.tp = 4.0 must be a whole number"),
    ({"parallelism.tp": True}, "parallelism.tp = true must be a whole number"),
    ({"parallelism.sp": 1}, "parallelism.sp = 1 must be true or false"),
    ({"training.clip": "later"}, "training.clip = \"later\" must be true or false or 'post'"),
    ({"simulation.host": "x.txt"}, "or 'graphs' or the path of a .json file"),
    ({"model.fused": -1}, "model.fused = -1 must be true or false or 'except_gate'"),
    ({"model.kernels": {"norm": "fast"}}, "model.kernels.norm = \"fast\" must be 'fused' or"),
    ({"model.kernels": {"norn": "eager"}}, "did you mean model.kernels.norm"),
    ({"model.kernels": {"norm": "eager"}}, 'model.kernels.norm = "eager" needs model.norm = "rms"'),
    ({"model.kernels": {"rope": "complex"}}, 'needs model.position = "rope"'),
    ({"model.kernels": {"experts": "sequential"}}, "needs model.experts"),
    ({"model.kernels": {"permute": "eager"}}, "needs model.experts"),
    ({"training.foreach": True, "training.optimizer": "sgd"}, "or training.optimizer"),
    ({"training.foreach": True, "training.offload": "optimizer"}, "or training.offload"),
    ({"training.foreach": True, "training.optimizer_state": {}}, "or training.optimizer_state"),
    ({"parallelism.tp": 0}, "parallelism.tp = 0 must be at least 1"),
    ({"parallelism.bucket_mb": -3.0}, "parallelism.bucket_mb = -3.0 must be greater than 0"),
    ({"parallelism.bucket_mb": float("nan")}, "must be a finite number"),
    ({"cluster.gpus": -8}, "cluster.gpus = -8 must be at least 1"),
    ({"model.layers": 0}, "model.layers = 0 must be at least 1"),
    ({"model.dropout": 1.0}, "model.dropout = 1.0 must be less than 1"),
    ({"training.recompute": "ful"}, "recompute = \"ful\" must be 'none', 'selective' or 'full'"),
    ({"training.recompute": 3}, "recompute = 3 must be 'none', 'selective' or 'full'"),
    ({"training.recompute": {"every": 0}}, "recompute.every = 0 must be at least 1"),
    ({"training.recompute": {"evry": 2}}, "did you mean training.recompute.every"),
    ({"training.recompute": {"modules": ["mpl"]}}, "modules = \"mpl\" must be 'core_attn', "),
    ({"training.recompute": {"modules": ["moe"]}}, "needs model.experts; leave it out"),
    ({"training.recompute": {"modules": ["mla_up_proj"]}}, "needs model.mla; leave it out"),
    ({"training.recompute": {"modules": ["op", "mlp"]}}, "leave the other modules out"),
    ({"training.recompute": {"modules": ["op"]}}, "is not simulated with"),
    ({"training.recompute": {"every": 2, "fraction": 0.5}}, "leave one out"),
    ({"training.recompute": {"method": "block"}}, "needs layers, how many of each stage"),
    ({"training.recompute": {"layers": 2}}, 'needs method = "uniform" or "block"'),
    ({"training.recompute": {"method": "uniform", "modules": []}}, "is for whole layers"),
    ({"cluster.gpus": None}, "cluster.gpus is missing"),
    ({"model.preset": None}, "model.layers is missing; give it, or a preset"),
    ({"model.preset": "gpt-22"}, "no model preset 'gpt-22'; did you mean gpt-22b?"),
    ({"model.hf": "x.json"}, "model.preset and model.hf are both given"),
    ({"cluster.topology": "no/such.toml"}, "there is no file no/such.toml"),
    ({"parallelism.dp": 4}, "= 32, but cluster.gpus = 64; dp = 8 would do"),
    ({"cluster.gpus": 60}, "but cluster.gpus = 60; a multiple of 8 GPUs would do"),
    ({"cluster.gpus": 48, "parallelism.tp": 24}, "model.heads = 64 cannot be split over"),
    ({"model.heads": 96, "model.kv_heads": 6},
     "kv_heads = 6 cannot be split over parallelism.tp = 4; tp must divide it, or be a multiple"),
    ({"model.kv_heads": 3}, "model.heads = 64 is not a multiple of model.kv_heads = 3"),
    ({"model.hidden": 6145}, "model.hidden = 6145 is not a multiple of model.heads = 64"),
    ({"model.layers": 47}, "cannot be spread evenly; write schedule.layers_per_stage = [24, 23]"),
    ({"model.layers": 1}, "1 layer on 2 stages (pp x chunks) leaves some without a layer"),
    ({"schedule.layers_per_stage": [24, 25]}, "adds up to 49, but model.layers = 48"),
    ({"schedule.layers_per_stage": [48]}, "schedule.layers_per_stage has length 1"),
    ({"schedule.layers_per_stage": [48, -1]},
     "schedule.layers_per_stage[1] = -1 must be at least 0"),
    ({"schedule.layers_per_stage": 24}, "must be a list of whole numbers"),
    ({"training.recompute": {"modules": "mlp"}}, 'must be a list, such as ["mlp"]'),
    ({"training.fp8.recipe": "delayed"}, "give the whole table: training.fp8={recipe = ...}"),
    ({"training.global_batch": 60}, "1 x 8; 56 or 64 would do"),
    ({"training.global_batch": 4}, "1 x 8; 8 would do"),
    ({"schedule.name": "zbx"}, "no schedule 'zbx'; did you mean zb_v? There are dualpipe, "),
    ({"schedule.name": "gpipe", "schedule.chunks": 2}, "gpipe has 1 stage per rank"),
    ({"schedule.group": 4}, "the schedule one_f_one_b has no group"),
    ({"parallelism.order": "tp-pp"}, 'once each, innermost first, such as "tp-cp-ep-dp-pp"'),
    ({"parallelism.tp_overlap": True}, "parallelism.tp_overlap = true needs sp = true"),
    ({"parallelism.tp": 1, "parallelism.sp": True}, "parallelism.sp = true needs tp > 1"),
    ({"parallelism.sp": True, "parallelism.scatter_gather": True}, "needs sp = false"),
    ({"parallelism.p2p": "batched", "parallelism.overlap_p2p": True}, "needs p2p = "),
    ({"parallelism.sp": True, "model.sequence": 1022}, "model.sequence = 1022 cannot be split"),
    ({"model.layers": 10_001}, "model.layers = 10001 must be at most 10,000"),
    ({"cluster.gpus": 131_073}, "cluster.gpus = 131073 must be at most 131,072"),
    ({"training.global_batch": 1_000_001}, "must be at most 1,000,000"),
    ({"model.hidden": 2**31 + 1}, "must be at most 2,147,483,648"),
    ({"model.ffn": 2**31 + 1}, "must be at most 2,147,483,648"),
    ({"model.vocab": 2**31 + 1}, "must be at most 2,147,483,648"),
    ({"model.sequence": 10**400}, "000... must be at most 2,147,483,648"),
    ({"model.heads": 16**5000}, "model.heads = a int too long to show must be at most"),
    ({"training.global_batch": 65_537 * 8},
     "65,537 microbatches per pipeline and run are more than the"),
    ({"parallelism.pp": 16, "cluster.gpus": 512, "training.global_batch": 65_008 * 8}
     | {"model.layers": 96, "schedule.name": "interleaved_1f1b", "schedule.chunks": 6},
     "pp x chunks x microbatches = 96 x 65008 are more than the 5,000,000 steps"),
    ({"model.pattern": "full"}, '= "full" must be a list, such as ["sliding", "full"]'),
    ({"training.offload": {"optimizer": {}}}, "training.offload.optimizer = {} must be a number"),
    ({"parallelism.fsdp": {"wrap": 2**31 + 1}}, "must be 'layer' or 'model' or at most 2,147,483,"),
    ({"parallelism.order": "tp\ncp"}, r'parallelism.order = "tp\ncp" must name tp, cp, ep, dp, pp'),
    ({"model.preset": ""}, "model.preset is empty; give it, or leave it out"),
    ({"model.hf": ""}, "model.hf is empty"),
    ({"cluster.topology": ""}, "cluster.topology is empty"),
    ({"parallelism.overlap_param_gather": True}, "overlap_param_gather = true needs zero = 1"),
    ({"schedule.name": "1F1B"}, "no schedule '1F1B'; did you mean one_f_one_b?"),
    ({"schedule.name": "GPipe"}, "did you mean gpipe?"),
    ({"perturbations": [{"rank": 3}]}, "[[perturbations]] are set key by key"),
]  # fmt: skip


@pytest.mark.parametrize(("overrides", "sentence"), REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(overrides, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe_file.parse(tomllib.loads(TEXT), overrides=overrides)
    assert sentence in str(error.value)


@pytest.mark.parametrize("value", [{}, [{}], {"x": 1}, 10**400, 1e-320, "x" * 5000], ids=range(6))
def test_a_key_takes_a_value_or_says_in_a_short_sentence_why_not(value):
    """Every key, those of tables inside sections too."""
    over = [{f"{name}.{key}": value} for name, keys in SECTIONS.items() for key in keys]
    over += [{table: {key: value}} for table, keys in TABLES.items() for key in keys]
    rows = [{"perturbations": [{key: value}]} for key in PerturbationSection.model_fields]
    cases = [*product([{}], over), *product(rows, [{}])]
    said = []
    for data, changes in cases:
        try:
            recipe_file.parse(tomllib.loads(TEXT) | data, overrides=changes)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 0.9 * len(cases)
    assert not [text for text in said if "\n" in text or len(text) > 1000]


def test_interleaved_refuses_what_neither_megatron_nor_torch_takes():
    shape = {"schedule__name": "interleaved_1f1b", "parallelism__pp": 4, "parallelism__tp": 2}
    assert parse(**shape, training__global_batch=7 * 8).microbatches == 7  # torch: one round
    with pytest.raises(ValueError, match=r"11 microbatches .* 8 or 12 would, or group = 11"):
        parse(**shape, training__global_batch=11 * 8)
    assert parse(**shape, training__global_batch=11 * 8, schedule__group=11).microbatches == 11


LATER = [
    ("schedule.deferred_wgrad", True, "it must be false"),
    ("training.fp8", {"attention": True}, "it must be false"),
    ("training.optimizer", "lion", 'it must be "adam" or "sgd"'),
    ("training.param_gather_dtype", "fp16", 'it must be training.dtype, "bf16"'),
    ("simulation.costs", "table", 'it must be "fit"'),
]


@pytest.mark.parametrize(("key", "value", "sentence"), LATER)
def test_what_comes_later_is_known_and_said_so(key, value, sentence):
    with pytest.raises(ValueError, match="not simulated yet") as error:
        recipe_file.parse(tomllib.loads(TEXT), overrides={key: value})
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (b"model = [", "is not TOML"),
        (b"\xff\xfe", "it is not text in UTF-8"),
        (b"model = 3", "model = 3 must be a table, [model]"),
        (b"", "the section [model] is missing"),
        (TEXT.replace("model", "modle").encode(), "unknown key modle; did you mean model?"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(written, sentence, tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_bytes(written)
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        recipe_file.load(file)
    assert sentence in str(error.value)


@pytest.mark.parametrize("deep", ["a = " + "[" * 99999, "a = " + "{a=" * 9999])
def test_what_is_nested_too_deeply_is_refused(deep, tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(deep)
    with pytest.raises(ValueError, match="too deeply to be read"):
        recipe_file.load(file)
    with pytest.raises(ValueError, match=r"--set model\.mla nests its lists too deeply"):
        recipe_file.setting(deep.replace("a =", "model.mla =", 1))


def test_a_byte_order_mark_is_no_part_of_a_recipe(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text(TEXT, encoding="utf-8-sig")
    assert recipe_file.load(file) == parse()


def test_set_takes_one_line():
    with pytest.raises(ValueError, match=r"--set parallelism\.tp takes a value of one line"):
        recipe_file.setting("parallelism.tp=4\nx=5")


def test_values_that_need_no_escape_are_written_as_they_are():
    """JSON's pairs of surrogates are not TOML."""
    text = refusals.show("\U0001f600\x7f")
    assert tomllib.loads(f"a = {text}") == {"a": "\U0001f600\x7f"}


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read the recipe .*no\.toml: No such file"):
        recipe_file.load(tmp_path / "no.toml")


def test_the_schema_knows_every_key_and_says_what_it_means():
    schema = recipe_file.json_schema()
    sections = schema["$defs"]
    assert set(schema["properties"]) == set(Recipe.model_fields) | set(translate.SCHEMA)
    assert schema["required"] == ["cluster"]  # the rest may come from what those two name
    keys = [key for section in sections.values() for key in section["properties"].values()]
    assert all("description" in key for key in keys)


CP = {"attention": "flash", "sequence": 2048}, {"cp": 2, "tp": 4, "pp": 2, "dp": 4}
CONTEXT = [
    ({}, {"ulysses": 2}, 'parallelism.ulysses = 2 needs cp_kind = "usp"'),
    ({}, {"cp": 4, "dp": 2, "cp_kind": "usp", "ulysses": 3}, "ulysses must divide cp"),
    ({"attention": "unfused"}, {}, 'cp_kind = "ring" needs model.attention = "flash"'),
    ({}, {"cp_kind": "allgather", "cp_placement": "striped"}, "needs a ring"),
    ({"sequence": 2046}, {}, "over parallelism.cp = 2, in two runs each; a multiple of 4 would do"),
    ({"sequence": 2047}, {"cp_placement": "striped"}, "cp = 2; a multiple of 2 would do"),
    ({"sequence": 2052}, {"sp": True}, "and sp over tp = 4; a multiple of 8 would do"),
    ({"heads": 12, "kv_heads": 12}, {"cp": 2, "cp_kind": "ulysses"},
     "model.heads = 12 over tp = 4 cannot be exchanged among 2 GPUs; the degree of Ulysses must"),
    ({"heads": 48, "kv_heads": 12}, {"cp": 4, "dp": 2, "cp_kind": "ulysses"},
     "model.kv_heads = 12 over tp = 4 cannot be exchanged among 4 GPUs"),
]  # fmt: skip


def complete(model: dict[str, object], parallelism: dict[str, object]) -> Recipe:
    """A recipe with context parallelism, whole, as it is when its numbers are compared."""
    recipe = parse()
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update=CP[0] | model),
            "parallelism": recipe.parallelism.model_copy(update=CP[1] | parallelism),
        }
    )


@pytest.mark.parametrize(("model", "parallelism", "sentence"), CONTEXT)
def test_what_context_parallelism_cannot_split_is_refused(model, parallelism, sentence):
    with pytest.raises(ValueError, match=r"^[^\n]*$") as error:
        legality.check(complete(model, parallelism))
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "parallelism",
    [
        {},
        {"cp_placement": "striped"},
        {"cp_kind": "ulysses", "sp": True},
        {"cp_kind": "allgather", "cp_placement": "contiguous"},
        {"cp": 4, "dp": 2, "cp_kind": "usp", "ulysses": 2},
        {"cp": 1, "dp": 8, "cp_kind": "ulysses"},
    ],
)
def test_what_context_parallelism_can_split_passes(parallelism):
    legality.check(complete({}, parallelism))
    legality.check(complete({"kv_heads": 4}, parallelism))  # one per tp rank, copied for Ulysses
