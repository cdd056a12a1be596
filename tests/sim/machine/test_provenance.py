"""What a topology measured itself and what it borrows from its base, and that outputs say so."""

import pytest
from typer.testing import CliRunner

from sim.machine.cluster import load
from sim.machine.kernels import MEMORY_KINDS
from sim.machine.provenance import FAMILIES, sentence
from sim.runs.check import check
from sim.runs.compare import Way
from sim.runs.run import run
from tests.recipes import parsed
from traincast.commands.parts import comparison, sweeping
from traincast.main import app

OTHER_GPU = '[gpu]\nname = "X"\n'
OTHER_LINK = '[node.link]\nbandwidth = "100 GB/s"\n'
KERNELS = dict.fromkeys(("gemm", "attention", "memory_kernels"), "dgx_h100")
MEMORY = "[gpu.memory_kernels]\nfixed = '2 us'\n" + "".join(f"{k} = 0.5\n" for k in MEMORY_KINDS)
CASES = {
    "nothing of its own": ("", {}),
    "another network": ('[node.nic]\nbandwidth = "25 GB/s"\n', {}),
    "the same GPU and links, named again": (
        '[gpu]\nname = "H100-SXM5-80GB"\n[node.link]\nbandwidth = "450 GB/s"\nefficiency = 0.5\n',
        {},
    ),
    "another GPU": (OTHER_GPU, KERNELS),
    "other links": (OTHER_LINK, {"collectives": "dgx_h100"}),
    "another GPU with memory-bound kernels of its own": (OTHER_GPU + MEMORY,
        {key: KERNELS[key] for key in ("gemm", "attention")}),
    "another GPU with one constant of its own": (OTHER_GPU + "[gpu.gemm.bf16]\nramp = 1\n",
        KERNELS),
    "links with collectives of their own": (OTHER_LINK
        + "[collectives.p2p.ll]\nbase = '1 us'\nshare = 1\n", {}),
    "links with another's collectives": (OTHER_LINK
        + "[collectives]\nfrom = 'box'\n[collectives.p2p.ll]\nbase = '1 us'\nshare = 1\n",
        {"collectives": "box"}),
}  # fmt: skip


@pytest.fixture
def written(tmp_path):
    def write(text, base="dgx_h100", name="mine"):
        path = tmp_path / f"{name}.toml"
        path.write_text(f'base = "{base}"\nname = "{name}"\n{text}')
        return path

    return write


@pytest.mark.parametrize("case", CASES)
def test_borrowed_is_what_was_measured_on_another_gpu_or_other_links(case, written):
    text, borrowed = CASES[case]
    assert load(written(text), 8).borrowed == borrowed


def test_constants_keep_the_name_of_the_file_that_states_them(written):
    """Two bases up; the file in between adds a network only."""
    middle = written('[node.nic]\nbandwidth = "25 GB/s"\n', name="middle")
    top = written(OTHER_GPU, str(middle), "top")
    assert load(top, 8).borrowed == KERNELS
    own = written(OTHER_GPU + MEMORY, name="own")
    above = load(written("", str(own), "above"), 8)
    assert above.borrowed == {key: KERNELS[key] for key in ("gemm", "attention")}


def test_summary_check_and_comparison_say_what_is_borrowed(written, capsys):
    model = {"preset": "gpt-22b", "layers": 1, "attention": "flash"}
    recipe = parsed(model, 1, topology=written(OTHER_GPU), tp=2)
    result = run(recipe)
    machine = result.summary["machine"]
    assert machine == {"topology": "mine", "calibrated": ["collectives"], "borrowed": KERNELS}
    assert check(recipe)["machine"] == machine
    comparison.show([Way("a", result), Way("b", None, "no")])
    assert sentence(KERNELS) in capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_commands_print_it_in_a_line_and_only_where_it_holds(written, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[model]\npreset = "gpt-22b"\nlayers = 1\n[cluster]\ntopology = "dgx_h100"\ngpus = 2\n'
        "[parallelism]\ntp = 2\n[training]\nglobal_batch = 1\n"
    )
    other = written(OTHER_GPU)
    line = "uncalibrated: kernels priced with the constants of dgx_h100\n"
    for command in ("run", "check"):
        call = [command, str(recipe)]
        assert "uncalibrated" not in CliRunner().invoke(app, call).stdout
        said = CliRunner().invoke(app, [*call, "--set", f"cluster.topology={other}"])
        assert said.stdout.count(line) == 1, said.output
    assert "uncalibrated" not in CliRunner().invoke(app, ["topology", "dgx_h100"]).stdout
    assert line in CliRunner().invoke(app, ["topology", str(other)]).stdout


def test_a_sweep_says_it_and_names_the_ways_unless_it_is_of_all(capsys):
    """Of two sizes on this machine and on a calibrated one."""
    rows = [
        {"gpus": gpus, "step_time_s": 1.0, "mfu": 0.5, "idle_share_of_step": 0.1,
         "peak_bytes": 1.0, "fits": True, "uncalibrated": said, "refused": None}
        for said in ("uncalibrated: x", None) for gpus in (2, 4)
    ]  # fmt: skip
    sweeping.show(rows[:2], ["gpus"])
    assert capsys.readouterr().out.splitlines()[-1] == "uncalibrated: x"
    rows[2]["gpus"], rows[3]["gpus"] = 6, 8
    sweeping.show(rows, ["gpus"])
    assert capsys.readouterr().out.splitlines()[-1] == "gpus=2, gpus=4: uncalibrated: x"


def test_the_sentence_names_every_family():
    assert sentence({}) == ""
    assert sentence(KERNELS | {"collectives": "b"}) == (
        "uncalibrated: kernels priced with the constants of dgx_h100, "
        "collectives inside a node with those of b"
    )
    assert sentence({"collectives": "b"}).endswith("node priced with the constants of b")
    assert all(name.replace("_", " ") in sentence({name: "x"}) for name in FAMILIES)
