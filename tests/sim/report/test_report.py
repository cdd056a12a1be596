"""The page of a run: its columns give the timeline back; a browser shows it without a network."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image  # which matplotlib needs

from sim import report
from sim.analysis.bubbles import bubbles
from sim.analysis.path import path
from sim.analysis.words import cause_name
from sim.graph import Builder, Communication, Compute, Memory
from sim.memory.curve import peaks
from sim.report.merge import blocks
from sim.report.others import of_changes
from sim.report.table import Term, html
from sim.report.tables import figures, of_ops, of_summary
from sim.runs.run import Result, run
from sim.table import table
from sim.timeline import Timeline

RECIPE = """
model = { name = "<b>A & B</b>", layers = 4, hidden = 256, heads = 8, vocab = 1000, sequence = 128 }
cluster = { topology = "dgx_a100", gpus = 4 }
parallelism = { pp = 4 }
training.global_batch = 4
"""
CHROMIUM = "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
HOSTILE = "<script>document.title='bad'</script><img src=x onerror=\"document.title='bad'\">"


def small(name: str = "F0") -> Timeline:
    """Rank 0 computes F (5 s) and sends (1 s); rank 1 waits for it, computes F and I (4 s)."""
    b = Builder()
    send = Communication("p2p", 8.0, (0, 1), "pp")
    f0 = b.add(name, 0, "compute", Compute("gemm", 1.0, 1.0), phase="F", stage=0, microbatch=0,
               memory=[Memory("activations", 6 * 2.0**30, "start")])  # fmt: skip
    b.add("send", 0, "pp send", send, [f0], microbatch=0)
    recv = b.add("recv", 1, "pp recv", send, microbatch=0)
    f1 = b.add("F1", 1, "compute", Compute("gemm", 2.0, 1.0), [recv], phase="F", stage=1)
    b.add("I1", 1, "compute", Compute("gemm", 3.0, 1.0), [f1], phase="I", stage=1)
    b.join([1, 2])
    return Timeline(b.graph(), np.array([0.0, 5, 0, 6, 11]), np.array([5.0, 6, 6, 11, 15]))


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    file = tmp_path_factory.mktemp("recipe") / "recipe.toml"
    file.write_text(RECIPE)
    return run(file)


def carried(text: str, k: int = 0) -> dict[str, Any]:
    """What a page carries of a panel, its columns decoded as a browser would."""
    found = dict(re.findall(r'<script type="[^"]*" id="(meta|columns)">([^<]*)</script>', text))
    panel = json.loads(found["meta"])["panels"][k]
    data = gzip.decompress(base64.b64decode(found["columns"]))
    panel["columns"] = {
        name: np.frombuffer(data, np.dtype(of["type"].lower()).newbyteorder("<"),
                            of["rows"], of["at"])
        for name, of in panel["columns"].items()
    }  # fmt: skip
    return panel


def test_the_columns_give_back_every_op(result: Result) -> None:
    """Each op is a block of its own, at its rank, stream, and time to 1 in 2**32."""
    timeline, graph = result.timeline, result.timeline.graph
    panel = carried(report.page("x", [report.Panel("x", timeline)]))
    columns, tick = panel["columns"], timeline.seconds / (2**32 - 1)
    got = set()
    for row in panel["rows"]:
        for i in range(row["from"], row["to"]):
            got.add((row["rank"], row["stream"], panel["names"][columns["called"][i]],
                     int(columns["start"][i]), int(columns["end"][i]), int(columns["stage"][i]),
                     int(columns["microbatch"][i])))  # fmt: skip
    want = set()
    for i in range(len(graph)):
        op = graph.op(i)
        times = (
            round((at[i] - timeline.start.min()) / tick) for at in (timeline.start, timeline.end)
        )
        want.add((op.rank, op.stream, op.name, *times, op.stage, op.microbatch))
    assert got == want
    assert panel["blocks"] == len(graph)


def test_causes_partners_and_moving_data_are_those_of_the_graph() -> None:
    columns = carried(report.page("x", [report.panel("x", small())]))["columns"]
    # rows: rank 0 compute F0, pp send; rank 1 compute F1, I1, pp recv (streams in their order)
    name = ["F0", "send", "F1", "I1", "recv"]
    table = ["F0", "send", "recv", "F1", "I1"]
    assert [table[k] for k in columns["called"]] == name
    assert columns["need"].tolist() == [-1, 0, 4, 2, -1]
    assert columns["last"].tolist() == [-1, -1, -1, -1, 1]
    assert columns["member"].tolist() == [1, 4]
    seconds = columns["moves"] * (15.0 / (2**32 - 1))
    assert seconds == pytest.approx([0, 5, 6, 11, 5], abs=1e-8)
    assert [name[k] for k in columns["path_block"]] == ["F0", "send", "F1", "I1"]


def test_path_idle_time_and_memory_are_those_of_the_analyses(result: Result) -> None:
    timeline = result.timeline
    panel = carried(report.page("x", [report.panel("x", timeline)]))
    columns, tick = panel["columns"], timeline.seconds / (2**32 - 1)
    for kind, frame in (("path", path(timeline)), ("bubble", bubbles(timeline))):
        size = (columns[f"{kind}_end"].astype(float) - columns[f"{kind}_start"]) * tick
        causes = np.array(panel[f"{kind}_causes"])[columns[f"{kind}_cause"]]
        want = frame.groupby(frame["cause"].astype(str))["seconds"].sum()
        want = want.rename(cause_name) if kind == "bubble" else want  # as the terminal says it
        got = {name: size[causes == name].sum() for name in want.index}
        assert got == pytest.approx(want.to_dict(), abs=1e-9 + 1e-7 * timeline.seconds)
    assert highest(columns) == pytest.approx([p.peak_bytes for p in peaks(timeline)], rel=1e-7)


def test_words_of_the_figures_are_those_of_the_terminal_and_nothing_is_a_zero() -> None:
    spread = {"mean": 0.5, "max": 1.0}
    summary = {
        "step_time_s": 4.0,
        "bubble": {"idle_over_ideal": 0.25,
            "by_cause_s": {"exposed_pp": 0.5, "exposed_model": 2e-9, "warm_up": 1e-17}},
        "time_s": {"compute": spread, "exposed": {"pp": spread, "tp": {"mean": 0.0, "max": 0.0}},
            "exposed_waiting": {"pp": spread}},
        "critical_path_s": {"attention_backward": 1.0, "copy": 0.0},
        "bytes_sent": {},
        "memory": [],
    }  # fmt: skip
    assert [label for label, *_ in figures(summary)] == ["step time", "idle over computing"]
    time, idle, path, *_ = of_summary(summary)
    assert [row[0].text for row in time.rows] == ["compute", "exposed pp", "exposed waiting pp"]
    assert [row[0].text for row in idle.rows] == [
        "pp: data moves",
        "model (gradient norm): data moves",
    ]
    assert [row[0].text for row in path.rows] == ["attention backward"]
    assert "&lt; 0.01 %" in html(idle)
    found = {"before_s": 1.0, "waterfall_s": {"gap": -4.2e-16, "exposed_tp": 0.5}, "changed": []}
    assert [row[0] for row in of_changes(found)[0].rows] == ["exposed tp"]


def highest(columns: dict[str, Any]) -> list[float]:
    """The top of each memory curve."""
    return np.maximum.reduceat(columns["memory"], columns["memory_from"][:-1]).tolist()


def test_memory_of_a_run_is_what_its_gpu_must_hold(result: Result) -> None:
    """The curves have CUDA's context and NCCL, as the comparison's table and the verdict have."""
    needed = [entry["device_bytes"] for entry in result.summary["memory"]]
    ways = {"one": (result.timeline, result.summary)}
    run, both = report.of_run("a", *ways["one"]), report.of_comparison("b", ways)
    for text in (run, both):
        assert highest(carried(text)["columns"]) == pytest.approx(needed, rel=1e-7)
    assert f'data-value="{max(needed)!r}"' in both
    assert "memory needed" in both


def test_more_ops_than_fit_are_summarised(result: Result) -> None:
    """No second is lost: blocks hold all ops, and what they say is busy is the ops' time."""
    timeline = result.timeline
    everything = len(timeline.graph)
    panel = carried(report.page("x", [report.panel("x", timeline)], most=everything // 2))
    columns = panel["columns"]
    assert panel["blocks"] <= everything // 2
    kept = np.isin(timeline.graph.rank, panel["ranks"])
    assert columns["count"].sum() == kept.sum()
    span = (columns["end"].astype(float) - columns["start"]) * timeline.seconds / (2**32 - 1)
    busy = (columns["busy"] / 200 * span).sum()
    assert busy == pytest.approx((timeline.end - timeline.start)[kept].sum(), rel=0.01)


@pytest.mark.parametrize("most", [10_000, 3_000, 50])
def test_blocks_are_neighbours_of_one_row(most: int) -> None:
    """A block never spans two rows; with room it never mixes looks, and all ops are in one."""
    rng = np.random.default_rng(1)
    n = 20_000
    row, look = rng.integers(0, 4, n), rng.integers(0, 3, n)
    start = rng.uniform(0, 9.0, n)
    found = blocks(row, look, start, start + 1e-3, most)
    assert sorted(found.order.tolist()) == list(range(n))
    assert len(found) <= max(most, 4 * 1025)
    for a, b in zip(found.begins[:-1], found.begins[1:], strict=True):
        assert len({*row[found.order[a:b]].tolist()}) == 1


def test_few_blocks_take_few_ranks(result: Result) -> None:
    panel = carried(report.page("x", [report.panel("x", result.timeline)], most=2048))
    assert panel["ranks"] == [0, 3]
    assert panel["all_ranks"] == 4
    assert {row["rank"] for row in panel["rows"]} == {0, 3}


def test_equal_input_gives_equal_bytes(result: Result) -> None:
    one, two = (
        report.of_run("a", result.timeline, result.summary, result.cluster.gpu.memory)
        for _ in range(2)
    )
    assert one == two


def test_nothing_of_a_name_becomes_markup() -> None:
    """Texts are escaped wherever they stand, and names of 10 kB cut."""
    panel = report.Panel(HOSTILE, small(HOSTILE + "y" * 10_000))
    rows = [(HOSTILE,), (Term(HOSTILE, HOSTILE),)]
    of = table(rows, (HOSTILE, None, "", None, HOSTILE), title=HOSTILE, note=HOSTILE)
    text = report.page(
        HOSTILE, [panel], tables=[of], notes=[HOSTILE], figures=[(HOSTILE, 1.0, "", HOSTILE)]
    )
    assert text.count("<script") == 3  # our own
    assert "<img" not in text
    assert "y" * 201 not in text


def test_a_page_names_nothing_to_load(result: Result) -> None:
    text = report.of_run("a", result.timeline, result.summary)
    assert not re.findall(r'(?:src|href)="(?!data:)', text)
    assert not re.findall(r"https?://|url\(|@import|\bfetch\(|\bimport\(", text)


@pytest.mark.slow
def test_commands_write_their_pages(tmp_path: Path, traincast: Any) -> None:
    """run, analyze and diff: what one writes the others read, and each page holds its timelines."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE)
    out = tmp_path / "out"
    for line, page, panels in [
        (("run", recipe), "report.html", 1),
        (("analyze", out / "traces"), "report.html", 1),
        (("diff", out / "timeline.json.gz", recipe), "diff.html", 2),
    ]:
        code, said, _ = traincast(*line, "--out", out)
        assert code == 0
        assert page in said.replace("\n", "")
        text = (out / page).read_text(encoding="utf-8")
        meta = re.search(r'id="meta">([^<]*)<', text)
        assert meta is not None
        assert len(json.loads(meta[1])["panels"]) == panels
    (tmp_path / "file").write_text("")
    code, _, wrong = traincast("analyze", out / "traces", "--out", tmp_path / "file")
    assert (code, wrong.count("\n")) == (2, 1)


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="needs traincast[browser]")
    if not shutil.which(CHROMIUM):
        pytest.skip(f"no browser at {CHROMIUM}")
    with api.sync_playwright() as p:
        one = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield one
        one.close()


class Tab:
    """A page in a browser, and what went wrong in it."""

    def __init__(self, browser: Any, file: Path, text: str, size: tuple[int, int]) -> None:
        file.write_text(text, encoding="utf-8")
        self.page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        self.asked: list[str] = []
        self.wrong: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("body[data-ready]")

    def frame(self) -> None:
        """Wait until what was asked for is drawn."""
        self.page.evaluate(
            "new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))"
        )

    @property
    def view(self) -> tuple[float, float]:
        self.frame()
        of = self.page.locator("#ops")
        return float(of.get_attribute("data-from")), float(of.get_attribute("data-to"))

    def at(self, seconds: float, y: float) -> tuple[float, float]:
        """Where a time lies, so many pixels below the timeline's top, in the window."""
        box = self.page.locator("#ops").bounding_box()
        (begin, end), gutter = (
            self.view,
            float(self.page.locator("#ops").get_attribute("data-gutter")),
        )
        share = (seconds - begin) / (end - begin)
        return box["x"] + gutter + share * (box["width"] - gutter), box["y"] + y

    def chosen(self) -> str:
        return str(self.page.locator("#chosen").inner_text())


Opened = Callable[..., Tab]
RANK_0, SEND, RANK_1 = 40.0, 57.0, 77.0  # pixels from the top to the middle of these rows


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Opened]:
    tabs = []

    def open_(text: str, size: tuple[int, int] = (1200, 900)) -> Tab:
        tabs.append(Tab(browser, tmp_path / "report.html", text, size))
        return tabs[-1]

    yield open_
    for tab in tabs:
        assert tab.wrong == []
        assert [url for url in tab.asked if not url.startswith(("file:", "data:"))] == []
        tab.page.close()


@pytest.fixture
def tab(opened: Opened) -> Tab:
    return opened(report.page("small", [report.panel("small", small())]))


def test_hovering_tells_an_op_and_its_cause(tab: Tab) -> None:
    for seconds, y, words in [
        (2.5, RANK_0, ["F0", "forward", "0 s to 5 s: 5 s", "waited for no op", "critical path"]),
        (8.0, RANK_1, ["F1", "rank 1", "stage 1", "started when recv of microbatch 0 on rank 1"]),
        (5.5, SEND, ["send", "rank 0", "pp", "started when F0 of microbatch 0 on rank 0"]),
        (3.0, RANK_1, ["idle:", "rank 1", "0 s to 5 s", "waits for send"]),
    ]:
        tab.page.mouse.move(*tab.at(seconds, y))
        said = tab.page.locator("#hint").inner_text()
        assert [word for word in words if word not in said] == [], said


def test_keys_zoom_move_and_go_from_op_to_op(tab: Tab) -> None:
    begin, end = tab.view
    assert begin < 0 < 15 < end
    tab.page.focus("#ops")
    tab.page.keyboard.press("+")
    zoomed = tab.view
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (end - begin))
    tab.page.keyboard.press("ArrowRight")
    assert tab.view[0] == pytest.approx(zoomed[0] + 0.2 * (zoomed[1] - zoomed[0]), abs=0.3)
    tab.page.keyboard.press("0")
    assert tab.view == (begin, end)
    tab.page.mouse.click(*tab.at(12.0, RANK_1))
    assert tab.chosen().startswith("I1")
    for key, name in [("c", "F1"), ("c", "recv"), ("l", "send"), ("c", "F0"), ("n", "F0")]:
        tab.page.keyboard.press(key)
        assert tab.chosen().startswith(name), key
    tab.page.keyboard.press("Escape")
    assert tab.chosen() == "Nothing is chosen."


def test_the_mouse_pans_zooms_and_follows_links(tab: Tab) -> None:
    begin, end = tab.view
    x, y = tab.at(7.0, RANK_0)
    tab.page.mouse.move(x, y)
    tab.page.keyboard.down("Control")
    tab.page.mouse.wheel(0, -60)
    tab.page.keyboard.up("Control")
    zoomed = tab.view
    assert zoomed[1] - zoomed[0] < 0.8 * (end - begin)
    assert tab.at(7.0, RANK_0)[0] == pytest.approx(x, abs=2)  # what is under the pointer stays
    tab.page.mouse.down()
    tab.page.mouse.move(x - 100, y, steps=4)
    tab.page.mouse.up()
    assert tab.at(7.0, RANK_0)[0] == pytest.approx(x - 100, abs=2)
    tab.page.click("#all")
    tab.page.mouse.click(*tab.at(5.5, SEND))
    tab.page.get_by_role("button", name="partner: recv").click()
    assert tab.chosen().startswith("recv")
    assert "waits 5 s for send of microbatch 0 on rank 0" in tab.chosen()


def test_search_finds_and_goes_there(tab: Tab) -> None:
    tab.page.fill("#find", "f")
    assert tab.page.locator("#found").inner_text() == "2 found"
    tab.page.keyboard.press("Enter")
    assert tab.chosen().startswith("F0")
    tab.page.keyboard.press("Enter")
    assert tab.chosen().startswith("F1")
    tab.page.fill("#find", "")
    assert tab.page.locator("#found").inner_text() == ""


def colour(tab: Tab, seconds: float, y: float) -> tuple[int, ...]:
    """Of what the browser shows there."""
    x, down = tab.at(seconds, y)
    clip = {"x": round(x), "y": round(down), "width": 1, "height": 1}
    return Image.open(io.BytesIO(tab.page.screenshot(clip=clip))).convert("RGB").getpixel((0, 0))


def test_streams_hide_and_the_path_stands_out(tab: Tab) -> None:
    """Forward is #a9cbee; rank 1's receive, off the path, fades; a hidden stream makes room."""
    assert colour(tab, 1.5, RANK_0) == (0xA9, 0xCB, 0xEE)
    assert colour(tab, 5.5, SEND) == (0x1F, 0x6F, 0xB4)
    tab.page.click("#streams summary")
    tab.page.uncheck("[data-stream='pp send']")
    assert colour(tab, 5.5, SEND) != (0x1F, 0x6F, 0xB4)
    assert colour(tab, 7.0, RANK_1 - 12) == (0xA9, 0xCB, 0xEE)
    tab.page.check("[data-stream='pp send']")
    tab.page.keyboard.press("Escape")
    tab.page.check("#critical")
    assert colour(tab, 5.2, SEND) == (0x1F, 0x6F, 0xB4)
    recv = RANK_1 + 18
    assert colour(tab, 5.5, recv) not in {(0x1F, 0x6F, 0xB4), (255, 255, 255)}


def test_tables_sort_by_number_and_by_name(opened: Opened) -> None:
    rows = [("b", 10.0), ("a", 9.0), ("c", None), ("d", 100.0)]
    tab = opened(report.page("x", [], tables=[table(rows, "name", ("s", 1, "s"))]))

    def names() -> list[str]:
        return tab.page.locator("tbody td:first-child").all_inner_texts()

    number = tab.page.get_by_role("button", name="s", exact=True)
    name = tab.page.get_by_role("button", name="name", exact=True)
    number.click()
    assert names() == ["d", "b", "a", "c"]
    assert tab.page.locator("th").nth(1).get_attribute("aria-sort") == "descending"
    number.click()
    assert names() == ["c", "a", "b", "d"]
    name.click()
    assert names() == ["a", "b", "c", "d"]


def test_definitions_show_on_focus_and_hover(opened: Opened, result: Result) -> None:
    tab = opened(report.of_run("x", result.timeline, result.summary))
    tab.page.get_by_text("MFU", exact=True).focus()
    assert "utilisation" in tab.page.locator("#hint").inner_text()
    tab.page.get_by_text("step time", exact=True).hover()
    assert "first start" in tab.page.locator("#hint").inner_text()
    undefined = [label for label, *_, note in figures(result.summary) if not note]
    assert undefined == []


def test_hostile_names_do_nothing(opened: Opened) -> None:
    name = HOSTILE + "y" * 10_000
    panels = [report.panel(name, small(name)), report.panel(name, small("]]>\x00\u202e${x}"))]
    tables = [of_ops(small(name))]
    tab = opened(report.page(HOSTILE, panels, tables=tables, notes=[name]))
    tab.page.mouse.click(*tab.at(2.5, RANK_0 + 24))
    assert "<script>" in tab.chosen()  # as text
    tab.page.fill("#find", "<script>")
    assert tab.page.locator("#found").inner_text() == "1 found"
    assert tab.page.title() == HOSTILE
    assert tab.page.evaluate("document.images.length + document.scripts.length") == 3
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= 1200


@pytest.mark.parametrize("size", [(390, 844), (1280, 900)])
def test_two_schedules_share_an_axis_and_fit_the_width(
    opened: Opened, result: Result, size: tuple[int, int]
) -> None:
    ways = dict.fromkeys(("one", "two"), (result.timeline, result.summary))
    tab = opened(report.of_comparison("both", ways, 2.0**36, {"three": "it is refused"}), size)
    assert tab.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    said = tab.page.inner_text("main")
    assert said.index("it is refused") > said.index("mostly because of") > said.index("step time")
    assert tab.view[1] == pytest.approx(result.timeline.seconds * 1.01)
    tab.page.fill("#find", "optimizer")
    found = int(tab.page.locator("#found").inner_text().split()[0].replace(",", ""))
    names = result.timeline.to_pandas()["name"].astype(str)
    assert found == 2 * names.str.contains("optimizer").sum()
