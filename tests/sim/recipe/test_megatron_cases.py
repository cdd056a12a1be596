"""What becomes of Megatron-LM's own test cases: each loads, or is refused for a reason."""

from __future__ import annotations

from pathlib import Path

from schedules.input_error import InputError
from sim.recipe import recipe_file

LINES = [
    line.split("\t")
    for line in Path(__file__).with_name("megatron_cases.tsv").read_text("utf-8").splitlines()
    if not line.startswith("#")
]
COMMON = LINES[0][3].split()


def words(own: str) -> list[str]:
    """The flags of a case and their values."""
    away = {flag[1:] for flag in own.split() if flag.startswith("-")}
    kept = [word for word in COMMON if word.partition("=")[0] not in away]
    mine = [word for word in own.split() if not word.startswith("-")]
    pairs = [word.partition("=") for word in (*kept, *mine)]
    return [one for flag, _, value in pairs for one in (f"--{flag}", *value.split(",")) if one]


def verdict(own: str, gpus: int) -> str:
    cluster = {"topology": "dgx_h100", "gpus": gpus}
    try:
        recipe_file.parse({"megatron": words(own), "cluster": cluster}, Path())
    except InputError as error:
        return str(error).removeprefix("megatron: ")
    return "loads"


def test_every_case_has_its_verdict() -> None:
    """Of 229, at least 185 load; the others say what is not simulated."""
    judged = [line for line in LINES[1:] if not line[2].startswith("unread")]
    found = {name: verdict(own, int(gpus)) for name, gpus, _, own in judged}
    assert len(LINES) == 230
    assert [(n, found[n]) for n, _, said, _ in judged if not found[n].startswith(said)] == []
    assert sum(said == "loads" for said in found.values()) >= 185
