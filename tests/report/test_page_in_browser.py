"""The page of real runs in headless Chromium: what it draws is what ``naspipe log`` prints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import naspipe as npp
from naspipe.cli.main import main
from naspipe.report.recorded import read_run
from naspipe.report.run_tables import run_tables
from naspipe.store.compare import RecordedRun
from naspipe.store.metrics import summarize
from tests.equivalence import spaces
from tests.report.browser import Browser, find_chromium

pytestmark = pytest.mark.skipif(
    find_chromium() is None, reason="needs chromium on PATH (apt-get install chromium)"
)

DRAWN_ORDERS = """(() => {
    const gd = document.getElementById('timeline');
    const steps = {};
    gd.data.filter((trace) => ['forward', 'WRITE'].includes(trace.name)).forEach((trace) => {
        trace.customdata.forEach((row, place) => {
            const label = /layer (\\S+?),/.exec(trace.hovertext[place])[1];
            const subnet = /subnet (\\d+)/.exec(trace.hovertext[place])[1];
            const step = [trace.base[place], subnet + (trace.name === 'forward' ? 'F' : 'B')];
            (steps[label] = steps[label] || []).push(step);
        });
    });
    return Object.fromEntries(Object.entries(steps).map(([label, drawn]) =>
        [label, drawn.sort((a, b) => a[0] - b[0]).map(([, step]) => step).join('-')]));
})()"""

SHOWN_ORDERS = """(() => {
    const select = document.getElementById('layer');
    return Object.fromEntries([...select.options].map((option) => {
        select.value = option.value;
        select.dispatchEvent(new Event('change'));
        return [option.textContent, document.getElementById('order').textContent];
    }));
})()"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """On one stage, and on two with a memory budget; a name that HTML could mistake."""
    directory = tmp_path_factory.mktemp("runs")
    return [
        npp.train(
            spaces.mixed(), spaces.vectors, nn.CrossEntropyLoss(), steps=24, seed=3, stages=stages,
            run_dir=directory / name, execution={"memory_budget": budget},
        ).directory.path
        for stages, name, budget in ((1, "one", ""), (2, "two </script> & <b>", "3x"))
    ]  # fmt: skip


@pytest.fixture(scope="module")
def browser(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    page = runs[0].parent / "page.html"
    assert main(["report", str(runs[1]), str(runs[0]), "-o", str(page)]) == 0
    with Browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.open(page)
        opened.wait_for("typeof naspipe !== 'undefined' && naspipe.isReady")
        yield opened
        assert opened.problems() == []
        addresses = [url for url in opened.requested() if not url.startswith(("data:", "blob:"))]
        assert addresses == [page.as_uri()], "the page asked for something outside its file"


def printed(run: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Label to access order, as ``naspipe log`` prints them."""
    capsys.readouterr()
    assert main(["log", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    return {fields[0]: fields[-1] for fields in lines}


def test_it_begins_with_words(browser: Browser, runs: list[Path]) -> None:
    shown = browser.evaluate(
        "[...document.querySelectorAll('#words li')].map((e) => e.textContent)"
    )
    assert shown == run_tables(read_run(runs[1]), "two")["words"]
    assert shown[0].startswith("2 stages were busy ") and len(shown) > 1


def test_bars_of_the_timeline_are_the_log(
    browser: Browser, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Read back from the drawn bars: a layer's READs and WRITEs by the time of their bars."""
    assert browser.evaluate(DRAWN_ORDERS) == printed(runs[1], capsys)
    bars = browser.evaluate("document.querySelectorAll('#timeline .barlayer .point path').length")
    assert bars >= len(RecordedRun(runs[1]).accesses)


def test_the_picked_layers_order_is_what_log_prints(
    browser: Browser, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert browser.evaluate(SHOWN_ORDERS) == printed(runs[1], capsys)


def test_nothing_offers_to_upload(browser: Browser) -> None:
    """plotly.js would show a button that sends the chart to its makers."""
    names = browser.evaluate(
        "[...document.querySelectorAll('.modebar-btn')].map((button) => button.dataset.title)"
    )
    assert "Download plot as a PNG" in names
    assert {name for name in names if "hare" in name or "loud" in name} == set()


def test_numbers_are_those_of_the_log(browser: Browser, runs: list[Path]) -> None:
    recorded = RecordedRun(runs[1])
    summary = summarize(recorded.accesses, 2)
    tiles = browser.evaluate("document.getElementById('tiles').innerText")
    assert f"{100 * summary.bubble_ratio:.1f}\xa0%" in tiles
    assert f"{100 * summary.hit_rate:.1f}\xa0%" in tiles
    assert f"{summary.seconds:.2f} s" in tiles
    drawn = browser.evaluate("Array.from(document.getElementById('loss').data[0].y)")
    assert drawn == [loss.value for loss in recorded.losses]
    heads = browser.evaluate("document.getElementById('compared').innerText")
    assert "same losses, same access order" in heads


def test_pointing_at_a_bar_tells_its_record(browser: Browser) -> None:
    """A real mouse over the widest forward."""
    place = json.loads(
        browser.evaluate("""(() => {
        document.getElementById('timeline').scrollIntoView();
        const boxes = [...document.querySelectorAll('#timeline .barlayer .trace:first-child path')]
            .map((path) => path.getBoundingClientRect()).sort((a, b) => b.width - a.width);
        return JSON.stringify([boxes[0].x + boxes[0].width / 2, boxes[0].y + boxes[0].height / 2]);
    })()""")
    )
    browser.mouse(("mouseMoved", place[0] - 3, place[1] - 40), ("mouseMoved", *place))
    browser.wait_for("document.querySelector('#timeline .hovertext') !== null")
    text = browser.evaluate("document.querySelector('#timeline .hovertext').textContent")
    for piece in ("forward of subnet", "layer ", "stage ", "from "):
        assert piece in text


def test_zooming_out_of_a_large_run_merges_and_in_shows_each(browser: Browser) -> None:
    """The run repeated to 20,000 records: few bars, all of the time that they cover."""
    answer = json.loads(
        browser.evaluate("""(async () => {
        const run = naspipe.runs[0], spans = run.spans, length = run.end_ns;
        const copies = Math.ceil(20000 / spans.start.length);
        const many = {...run, end_ns: copies * length, spans: Object.fromEntries(
            Object.entries(spans).map(([name, column]) => [name,
                [...Array(copies).keys()].flatMap((copy) =>
                    Array.from(column, (value) => name === 'start' ? value + copy * length : value))
            ]))};
        const whole = timelineTraces(many, 0, many.end_ns, 1200);
        const part = timelineTraces(many, length, 2 * length, 1200);
        const bars = whole.traces.reduce((sum, trace) => sum + trace.x.length, 0);
        const starts = (trace) => trace.base.filter((time) => time * 1e9 > length - 1).length;
        return JSON.stringify({records: whole.records, bars, exact: whole.isExact,
            partExact: part.isExact,
            part: part.traces.slice(0, 4).reduce((n, t) => n + starts(t), 0),
            each: spans.start.length});
    })()""")
    )
    assert answer["records"] >= 20000 and not answer["exact"]
    assert answer["bars"] < 6000
    assert answer["partExact"] and answer["part"] >= answer["each"]


def test_buttons_zoom_and_go_to_a_subnet(browser: Browser) -> None:
    browser.evaluate("document.querySelector('[data-zoom=in]').click()")
    browser.wait_for("!naspipe.isDrawing && naspipe.window[0] > 0")
    browser.evaluate("""(() => { const field = document.getElementById('subnet');
        field.value = '7'; field.dispatchEvent(new Event('change')); })()""")
    browser.wait_for("!naspipe.isDrawing && document.getElementById('detail').textContent")
    first = browser.evaluate(
        "naspipe.run.spans.start[Array.from(naspipe.run.spans.subnet).indexOf(7)]"
    )
    start, end = browser.evaluate("naspipe.window")
    assert start <= first < end < browser.evaluate("naspipe.run.end_ns") + 1
    browser.evaluate("document.querySelector('[data-zoom=all]').click()")
    browser.wait_for("!naspipe.isDrawing && naspipe.window[0] === 0")


def test_another_run_and_the_dark_theme_are_a_click_away(
    browser: Browser, runs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    browser.evaluate("document.querySelectorAll('#runs button')[1].click()")
    browser.wait_for("naspipe.run.name === 'one' && naspipe.isReady")

    assert browser.evaluate(DRAWN_ORDERS) == printed(runs[0], capsys)
    browser.evaluate("document.getElementById('theme').click()")
    browser.wait_for("document.getElementById('timeline').layout.paper_bgcolor === '#1b2029'")
