"""Figures in the documents: ``python -m validation.readme`` writes them from ``results.md``.

What stands between a mark such as ``<!-- results -->`` and its end is written here: a few step
times in README, more in ``docs/predictions.md``.
"""

from __future__ import annotations

import re
from pathlib import Path

from sim.table import markdown, table

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results.md"
STEPS = {
    "22B_full": ("GPT 22B, 8 A100, full recomputation", "Korthikanti 2022"),
    "175B_selective": ("GPT 175B, 64 A100, selective recomputation", "Korthikanti 2022"),
    "530B_full": ("GPT 530B, 280 A100, full recomputation", "Korthikanti 2022"),
    "145B": ("GPT 145B, 1,536 A100", "Narayanan 2021"),
    "15b_h100_n16_bf16": ("Nemotron 15B, 16 H100", "DGX Cloud v24.11.1"),
    "175b_h100_n512_bf16": ("GPT 175B, 512 H100", "DGX Cloud v24.11.1"),
    "14.6B_m48_1f1b": ("GPT 14.6B, 16 A100, pipeline alone", "Qi 2023"),
    "narayanan21_t2_zero3_175B_n384": ("GPT 175B, 384 A100, ZeRO-3", "Narayanan 2021"),
    "lf_h100_80gb_70b_s2048_n256_mb8_ga1_amp_bf16": ("MPT 70B, 256 H100, FSDP", "MosaicML"),
    "torchtitan_asynctp_llama3-70b_n256_bf16_vanilla": (
        "Llama 3 70B, 256 H100 (500 W), FSDP2 and TP",
        "torchtitan",
    ),
    "dgxc_v25.02_70b_h100_n64_bf16": ("Llama 3.1 70B, 64 H100, CP 2", "DGX Cloud v25.02"),
    "dgxc_v25.02_70b_h100_n64_fp8": ("the same in FP8", "DGX Cloud v25.02"),
    "dgxc_v25.02_grok_h100_n512_bf16": ("Grok-1, 512 H100, EP 8", "DGX Cloud v25.02"),
}
"""Rows that stand for the others: what each is, and whose figure."""
FEW = (
    "22B_full",
    "175B_selective",
    "145B",
    "175b_h100_n512_bf16",
    "narayanan21_t2_zero3_175B_n384",
    "dgxc_v25.02_70b_h100_n64_bf16",
)
"""Of these, those in README."""
TABLES = {"README.md": FEW, "docs/predictions.md": tuple(STEPS)}
"""Pages with step times, and which rows each shows."""


def published(text: str) -> dict[str, tuple[str, str, float]]:
    """Return the rows of step times in a page of results: predicted, measured (s), and error."""
    head = r"predicted, s \| measured, s \| error \|[^\n]*\n[^\n]*\n((?:\|[^\n]*\n)+)"
    lines = [line for rows in re.findall(head, text) for line in rows.splitlines()]
    cells = [[cell.strip() for cell in line.split("|")[1:5]] for line in lines]
    return {name: (here, there, float(off.removesuffix(" %"))) for name, here, there, off in cells}


def results(text: str, shown: tuple[str, ...]) -> str:
    """Return the table of chosen step times, measured and predicted, and the errors of all."""
    rows = published(text)
    out = markdown(
        table(
            [(*STEPS[name], *rows[name]) for name in shown],
            "run",
            ("source", 1, "", True),
            ("measured", 3, "{} s".format),
            ("predicted", 2, "{} s".format),
            ("error", 4, "{:+.1f}%".format),
        )
    )
    said = re.search(r"All step times: (mean .*), (\d+) rows", text)
    assert said, "the page of results says what all step times come to"
    errors = said[1].replace(" %", "%").replace("max", "largest")
    return "\n".join([out, "", f"These are {len(shown)} examples. All {said[2]} rows: {errors}."])


def put(text: str, mark: str, what: str) -> str:
    """Return ``text`` with ``what`` after a mark, in place of all up to the mark that ends it."""
    pattern = rf"(<!-- {mark} -->\n).*?(<!-- end -->)"
    return re.sub(pattern, lambda found: f"{found[1]}\n{what}\n\n{found[2]}", text, flags=re.S)


def main() -> None:
    """Rewrite the tables of all pages."""
    text = RESULTS.read_text()
    for page, shown in TABLES.items():
        path = ROOT / page
        path.write_text(put(path.read_text(), "results", results(text, shown)))


if __name__ == "__main__":
    main()
