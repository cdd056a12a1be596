"""Launch scripts as they are read against bash, which runs them; and what cannot be read."""

from __future__ import annotations

import re
import subprocess

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sim.recipe.translate import shell, yaml_case

SCRIPTS = {
    "variables": "A=3\nB=${A}x\ntorchrun t.py --a $A --b ${B} --c $A$B",
    "defaults": 'torchrun t.py ${NO_SUCH:-4} "${NO_SUCH:-five six}" ${NO_SUCH:-five six}',
    "quotes": """A='x  y'\ntorchrun t.py "$A" $A '$A' "a\\"b" a\\ b "--x=$A" """,
    "arrays": "A=(\n  --a 1   # one\n  --b 'x y'\n)\nA+=(--c)\ntorchrun t.py ${A[@]} \"${A[@]}\"",
    "strings": 'A=" --a 1 \\\n  --b 2"\nA="$A --c"\ntorchrun -n 8 t.py \\\n  $A \\\n  --d',
    "order": "A=1\nB=$A\nA=2\ntorchrun t.py $A $B",
    "exports": "export A=1 B=2\nC=3 torchrun t.py $A $B",
    "if": 'D=fp8\nif [[ "$D" == "fp8" ]]; then\n A=1\nelif [ 1 = 1 ]; then A=2\nelse A=3; fi\n'
    "if [ -z $D ]; then B=1; else B=2; fi\ntorchrun t.py $A $B",
    "nested": "if [ a = b ]; then\n if [ a = a ]; then A=1; fi\nelse\n A=2\nfi\ntorchrun t.py $A",
    "and": "A=1\n[ $A = 1 ] && B=2\n[ $A = 2 ] && B=3\n[ $A = 2 ] || C=4\ntorchrun t.py $B $C",
    "document": "cat > /dev/null <<EOF\ndon't (\nEOF\ntorchrun t.py --a '#' b#c # end",
    "redirection": "torchrun t.py --a 1 2>&1 --b 2 2> /dev/null",
}


@pytest.mark.parametrize("text", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_words_are_those_that_bash_passes(text: str) -> None:
    """A function in place of torchrun prints what it is given, a word a line."""
    told = f"torchrun() {{ printf '%s\\n' \"$@\"; }}\n{text}"
    ran = subprocess.run(["bash", "-c", told], capture_output=True, text=True, check=True)
    real = ran.stdout.splitlines()
    words, left_out = shell.arguments(text, "a.sh")
    assert words == real[real.index("t.py") + 1 :]
    assert left_out == []


def test_what_only_a_shell_would_know_is_left_out_and_named() -> None:
    text = """
A=(--a 1)
if [ -f /etc/no ]; then A+=(--b 2); else A+=(--c 3); fi
if [ 1 = 1 ] && [ 2 = 3 ]; then A+=(--d 4); fi
for i in 1 2; do
  A+=(--e $i)
done
case $1 in x) A+=(--f) ;; esac
function f { A+=(--g); }
g() {
  A+=(--h)
}
[ -f x ] && A+=(--i)
torchrun t.py ${A[@]} --tp $TP --n $(nproc) --m $((2 * 2)) --dir `pwd`
"""
    words, left_out = shell.arguments(text, "a.sh")
    numbers = ["--n", "$(nproc)", "--m", "$((2 * 2))", "--dir", "`pwd`"]
    assert words == ["--a", "1", "--tp", "$TP", *numbers]
    lines = ["if (line 3)", "if (line 4)", "for (line 5)", "case (line 8)"]
    assert left_out == [*lines, "function (line 9)", "g (line 10)", "A+=( (line 13)"]


def test_without_a_training_command_the_arrays_are_the_arguments() -> None:
    text = 'A=(--num-layers 4)\nB="--bf16 --lr 1"\nC=/data\n'
    assert shell.arguments(text, "a.sh")[0] == ["--num-layers", "4", "--bf16", "--lr", "1"]


def test_of_several_commands_the_one_with_layers_is_read() -> None:
    text = "python prepare.py --x 1\npython t.py --num-layers 4\npython test.py --y 2"
    assert shell.arguments(text, "a.sh")[0] == ["--num-layers", "4"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=1\nB='x\n", "a.sh: the quote or bracket on line 2 has no end"),
        ('\n\necho "x', "a.sh: the quote or bracket on line 3 has no end"),
        ("A=xx\n" + "A=$A$A\n" * 60, "a.sh: the variable A becomes too long"),
        ("A=(x)\n" + "A+=(${A[@]})\n" * 60, "a.sh: the variable A becomes too long"),
        ("#" * 70_000, "a.sh is too long for a launch script: over 65,536 characters"),
        ("A=(\n--a 1\n", "a.sh: the array that begins on line 1 has no )"),
    ],
)
def test_what_does_not_match_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        shell.arguments(text, "a.sh")


def test_a_test_case_in_yaml_has_its_flags() -> None:
    text = """
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  # sizes
  --num-layers: 12
  --bf16: true
  --swiglu: false

  --recompute-modules: [moe_act mlp]   # two
  "--data-path": '/a b'
TEST_TYPE: regular
"""
    assert yaml_case.of_yaml(text, "m.yaml").given == {
        "--num-layers": ("12",),
        "--bf16": (),
        "--recompute-modules": ("moe_act", "mlp"),
        "--data-path": ("/a b",),
    }
    braces = "MODEL_ARGS: {--num-layers: 12, --bf16: true}"
    assert yaml_case.of_yaml(braces, "m.yaml").given == {"--num-layers": ("12",), "--bf16": ()}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A: 1\n", "m.yaml has no MODEL_ARGS with flags under it"),
        ("A: " + "[" * 999, "m.yaml nests its tables too deeply to be read"),
        ("A: &a [1]\nMODEL_ARGS: {--x: [*a, *a]}",
         "m.yaml: --x must be a value or a list of values, without tables"),
        ("MODEL_ARGS:\n  - x\n", "m.yaml has no MODEL_ARGS with flags under it"),
        ("MODEL_ARGS:\n  trainer.x: 1\n",
         'm.yaml: "trainer.x" is not a flag of Megatron-LM\'s scripts'),
    ],
)  # fmt: skip
def test_other_yaml_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        yaml_case.of_yaml(text, "m.yaml")


PARTS = (
    *("A=", "A+=", "(", ")", "'", '"', "$A", "${A[@]}", "${A:-", "}", "$(", "`", "\\", "\n", " "),
    *("if ", "[ ", " ]", "; then ", "else ", "fi", "for ", "done", "&&", "<<E", "x.py", "--a", "#"),
)


@example("${A:-\\}")
@given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
def test_any_text_is_read_or_refused_in_a_sentence(text: str) -> None:
    said = "a.sh: "
    try:
        words, left_out = shell.arguments(text, "a.sh")
    except ValueError as error:
        said = str(error)
    else:
        assert all(isinstance(word, str) for word in words + left_out)
    assert said.startswith("a.sh: ")
