"""The page in a real browser, from a file, with the network off."""

from __future__ import annotations

import asyncio
import html
import re

import numpy as np
import pytest
from choreographer.errors import ChromeNotFoundError
from PIL import Image

from engram import Monitor
from engram.report import ReportInput, build, write_images
from engram.report.monitor_page import build_monitor_page
from engram.report.notebook_figures import embed_figure
from engram.report.report_data import build_report_data
from engram.report.sections import choose_methods, stage_section
from engram.report.static_images import ChromiumNotFound, standalone_figure
from tests.refusals import refuses
from tests.report import chromium

HOSTILE = "<img src=x onerror=\"document.title='owned'\"> %{x}"
LABELS = ("Finetune", HOSTILE, "ER", "Joint")

needs_chromium = pytest.mark.skipif(
    chromium.find() is None, reason=f"none of {', '.join(chromium.NAMES)} is on the PATH"
)


def click(browser, selector):
    browser.evaluate(f"document.querySelector({selector!r}).click()")


def press(browser, key, code):
    text = {"text": "\r"} if key == "Enter" else {"text": " "} if key == " " else {}
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key=key, code=key.strip() or "Space",
                     windowsVirtualKeyCode=code, **(text if kind == "keyDown" else {}))  # fmt: skip


def scheme(browser, name):
    feature = {"name": "prefers-color-scheme", "value": name}
    browser.call("Emulation.setEmulatedMedia", features=[feature])


def complaints(browser):
    """Errors of scripts and blocked or attempted requests."""
    bad = []
    for event in browser.events:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            bad.append(params["exceptionDetails"])
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            bad.append(params["entry"])
        if event.get("method") == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "blob:", "data:")):
                bad.append(url)
    return bad


@pytest.fixture(scope="module")
def report(tmp_path_factory, frame_of, recipes_of):
    frame = frame_of(LABELS, tasks=3, points=5, orders=("0-1-2", "2-1-0"))
    inputs = ReportInput(frame, recipes_of(frame))
    return build(inputs, tmp_path_factory.mktemp("report") / "report.html", title="Browser test")


@pytest.fixture(scope="module")
def browser():
    with chromium.launch() as started:
        yield started


@pytest.fixture
def page(browser, report):
    browser.events.clear()
    browser.size(1280, 900)
    scheme(browser, "light")
    browser.open(report)
    browser.evaluate("localStorage.clear()")
    browser.evaluate("engramReport.ready")
    yield browser
    assert complaints(browser) == []


def visible(browser, selector):
    return browser.evaluate(
        f"[...document.querySelectorAll({selector!r})].filter(e => e.offsetParent).length"
    )


@needs_chromium
def test_every_figure_is_drawn(page):
    plots = page.evaluate("document.querySelectorAll('.plot').length")
    drawn = page.evaluate(
        "[...document.querySelectorAll('.plot')].filter(p => p.querySelector('.main-svg')"
        " && p.querySelectorAll('.trace, .hm, .violinlayer path').length).length"
    )
    assert plots == drawn == 4 + 4 + 3 + 1 + 1 + 1 + 2 + 2 + 1
    assert page.evaluate("document.title") == "Browser test"


@needs_chromium
def test_hostile_names_are_shown_as_text(page):
    shown = page.evaluate(
        "[...document.querySelectorAll('#table-summary td')].map(c => c.textContent)"
    )
    assert HOSTILE in shown
    assert page.evaluate("document.querySelectorAll('img').length") == 0
    ticks = page.evaluate("document.querySelector('#plot-orders').textContent")
    assert "<img src" in ticks


@needs_chromium
def test_switching_a_method_off_hides_it_everywhere(page):
    before = visible(page, "#table-summary tbody tr"), visible(page, ".panel")
    page.evaluate("document.querySelector('#method-0').focus()")
    press(page, " ", 32)
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    assert not page.evaluate("document.querySelector('#method-0').checked")
    name = page.evaluate("document.querySelector('#method-0').dataset.name")
    still = page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].filter(p => p.offsetParent)"
        ".flatMap(p => p.data).filter(t => t.visible !== false)"
        f".filter(t => t.meta.label === {name!r}).length"
    )
    assert still == 0
    after = visible(page, "#table-summary tbody tr"), visible(page, ".panel")
    assert after == (before[0] - 1, before[1] - 1)  # its row, its heat map
    click(page, "#all-off")
    assert visible(page, "#table-summary tbody tr") == 0
    click(page, "#all-on")
    assert visible(page, "#table-summary tbody tr") == 4


@needs_chromium
def test_views_switch_rows_and_traces(page):
    single = page.evaluate("document.querySelector('#table-summary').innerText")
    click(page, "input[value=multi]")
    assert page.evaluate("document.querySelector('#table-summary').innerText") != single
    heads = page.evaluate(
        "[...new Set([...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data)"
        ".filter(t => t.visible !== false).map(t => t.meta.head))].sort()"
    )
    assert heads == ["", "multi"]


@needs_chromium
def test_tables_sort_by_keyboard(page):
    column = (
        "[...document.querySelectorAll('#table-summary tbody tr')]"
        ".map(r => Number(r.querySelector('[data-forgetting]').dataset.sort))"
    )
    head = (
        "[...document.querySelectorAll('#table-summary th')]"
        ".find(h => h.innerText.startsWith('Forgetting'))"
    )
    page.evaluate(f"{head}.firstElementChild.focus()")
    press(page, "Enter", 13)
    assert page.evaluate(column) == sorted(page.evaluate(column))
    assert page.evaluate(f"{head}.getAttribute('aria-sort')") == "ascending"
    press(page, "Enter", 13)
    assert page.evaluate(column) == sorted(page.evaluate(column), reverse=True)
    assert page.evaluate(f"{head}.getAttribute('aria-sort')") == "descending"


@needs_chromium
def test_forgetting_by_another_definition(page):
    numbers = "[...document.querySelectorAll('[data-forgetting]')].map(c => Number(c.dataset.sort))"
    before = page.evaluate(numbers)
    page.evaluate(
        "(() => { const s = document.querySelector('#definition'); s.value = 'cglb';"
        " s.dispatchEvent(new Event('change')); })()"
    )
    after = page.evaluate(numbers)
    assert all(a < 0 < b for a, b in zip(after, before, strict=True))
    assert "CGLB" in page.evaluate("document.querySelector('#definition-text').textContent")


@needs_chromium
def test_focus_is_visible(page):
    press(page, "Tab", 9)
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"


@needs_chromium
def test_dark_follows_the_system_and_the_button(page):
    ink = "document.querySelector('.js-plotly-plot').layout.font.color"
    light = page.evaluate(ink)
    click(page, "#theme")
    page.evaluate("new Promise(done => setTimeout(done, 200))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(ink) != light
    page.evaluate("localStorage.clear()")


def pixels(browser, tmp_path, selector):
    """What stands in the box of an element, as colours [H, W, 3]."""
    box = browser.evaluate(
        f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView();"
        " const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; })()"
    )
    browser.screenshot(tmp_path / "part.png")
    with Image.open(tmp_path / "part.png") as image:
        return np.asarray(image.convert("RGB").crop([round(edge) for edge in box]), float)


@needs_chromium
def test_empty_cells_are_dim_on_a_dark_page(page, tmp_path):
    confusion = "#plot-matrix-1 .hm"  # its cells run from .6 to .95: the lower the dimmer
    light = pixels(page, tmp_path, confusion)
    click(page, "#theme")
    page.evaluate("new Promise(done => setTimeout(done, 500))")
    scales = page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data)"
        ".filter(t => t.type === 'heatmap').map(t => t.colorscale[0][1])"
    )
    assert set(scales) == {"#323a42"}
    colors = page.evaluate(
        "[...document.querySelectorAll('.js-plotly-plot')].flatMap(p => p.data)"
        ".filter(t => t.mode === 'text')"
        ".flatMap(t => t.text.map((value, i) => [Number(value), t.textfont.color[i]]))"
    )
    assert {color for _, color in colors} == {"#ffffff", "#101418"}
    assert all((value < 0.48) == (color == "#ffffff") for value, color in colors)
    dark = pixels(page, tmp_path, confusion)
    assert dark.max() > 200  # the best cell stands out
    assert light.shape == dark.shape
    click(page, "#theme")
    page.evaluate("localStorage.clear()")


@needs_chromium
def test_wide_tables_say_what_is_out_of_sight(page):
    page.size(390, 844, phone=True)
    page.evaluate("new Promise(done => setTimeout(done, 500))")
    box = "document.querySelector('#summary .table-box')"
    sign = "document.querySelector('#summary .hidden-columns').textContent"
    hidden = (
        f"(() => {{ const edge = {box}.getBoundingClientRect().right;"
        f" return [...{box}.querySelectorAll('th')]"
        ".filter(h => h.getBoundingClientRect().right > edge + 4).length; })()"
    )
    assert page.evaluate(sign) == f"{page.evaluate(hidden)} more columns →"
    classes = "[...document.querySelector('#summary .table-frame').classList].slice(1)"
    assert page.evaluate(classes) == ["goes-right"]
    page.evaluate(f"{box}.scrollLeft = 1e4")
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    assert page.evaluate(sign).startswith("←")
    assert page.evaluate(classes) == ["goes-left"]
    name, edge = page.evaluate(
        f"[{box}.querySelector('tr:not([hidden]) td.row-name'), {box}]"
        ".map(e => e.getBoundingClientRect().left)"
    )
    assert abs(name - edge) < 3  # the name of the row is still there


@needs_chromium
def test_legends_leave_axis_titles_free(browser, frame_of, tmp_path):
    names = [f"a method with a long label, number {i}" for i in range(9)]
    for count in (2, 9):
        inputs = ReportInput(frame_of(names[:count], seeds=2, tasks=3, points=0))
        facts = build_report_data(inputs)
        section = stage_section(facts, choose_methods(facts))
        figure = standalone_figure(section, section.panels[0], "single")
        path = tmp_path / "figure.html"
        page = f"<!doctype html><body style='width:900px'>{embed_figure(figure, library=True)}"
        path.write_text(page, encoding="utf-8")
        browser.size(1280, 1200)
        browser.open(path)
        browser.evaluate("new Promise(done => setTimeout(done, 1500))")
        title, legend, bottom = browser.evaluate(
            "['.xtitle', '.legend', '.main-svg'].map(s => document.querySelector(s)"
            ".getBoundingClientRect()).map((r, i) => i === 1 ? r.top : r.bottom)"
        )
        last = browser.evaluate(
            "Math.max(...[...document.querySelectorAll('.legendtext')]"
            ".map(e => e.getBoundingClientRect().bottom))"
        )
        assert title <= legend
        assert last <= bottom
        assert browser.evaluate("document.querySelectorAll('.legendtext').length") == count


@needs_chromium
def test_prints_in_light_and_in_width(page):
    click(page, "#theme")
    inside = (
        "[document.documentElement.dataset.theme, document.querySelector('main').clientWidth,"
        " [...document.querySelectorAll('.plot')].filter(p => p.offsetParent"
        " && Math.abs(p._fullLayout.width - p.parentElement.clientWidth) > 1).length]"
    )
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(inside) == ["light", 680, 0]
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.evaluate("new Promise(done => setTimeout(done, 800))")
    theme, width, wrong = page.evaluate(inside)
    assert (theme, wrong) == ("dark", 0)
    assert width > 680
    page.evaluate("localStorage.clear()")


@needs_chromium
@pytest.mark.parametrize("width, phone, colors", [
    (1280, False, "light"), (1280, False, "dark"), (390, True, "light"), (390, True, "dark"),
])  # fmt: skip
def test_fits_its_window(browser, report, tmp_path, width, phone, colors):
    browser.events.clear()
    scheme(browser, colors)
    browser.size(width, 844, phone=phone)
    browser.open(report)
    browser.evaluate("engramReport.ready")
    assert browser.evaluate("document.documentElement.dataset.theme") == colors
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    too_wide = browser.evaluate(
        "[...document.querySelectorAll('.plot .main-svg')]"
        ".filter(s => s.getBoundingClientRect().right > innerWidth + 1).length"
    )
    assert too_wide == 0
    picture = tmp_path / "shot.png"
    browser.screenshot(picture, whole=not phone)  # on a phone the page is 20,000 pixels long
    with Image.open(picture) as image:
        assert image.width == width * (2 if phone else 1)
        corner = image.convert("L").getpixel((2, image.height - 2))
    assert (corner < 60) == (colors == "dark")
    assert complaints(browser) == []


def ended(*_, **__):
    raise asyncio.CancelledError


@needs_chromium
def test_images_of_every_figure(tmp_path, frame_of):
    frame = frame_of(LABELS[:2], seeds=1, tasks=2, points=2, classes=0, heads=["single"])
    paths = write_images(ReportInput(frame), tmp_path / "images", width=500)
    names = {path.stem for path in paths}
    assert {"matrix-1", "stages-mean", "trade-off", "loss-1"} <= names
    assert len(paths) == 3 * len(names)
    drawing = (tmp_path / "images" / "trade-off.svg").read_text(encoding="utf-8")
    assert drawing.startswith("<svg")
    assert "<img" not in drawing
    assert "<img src" in html.unescape(drawing)
    with Image.open(tmp_path / "images" / "trade-off.png") as image:
        assert image.width == 1000
    page = (tmp_path / "images" / "trade-off.pdf").read_bytes()
    assert page.startswith(b"%PDF")
    width = re.search(rb"/MediaBox \[0 0 ([\d.]+) ", page)[1]
    assert abs(float(width) - 500 / 96 * 72) < 1  # points
    assert b"/Font" in page  # words and lines, no picture of them


def missing(*_, **__):
    raise ChromeNotFoundError


@pytest.mark.parametrize("browser", ["absent", "false", "killed"])
def test_without_chromium_there_is_a_clear_message(tmp_path, frame_of, monkeypatch, browser):
    if browser == "absent":
        monkeypatch.setattr("choreographer.browsers.chromium.Chromium.__init__", missing)
    elif browser == "false":  # one that ends at once
        monkeypatch.setenv("BROWSER_PATH", "/bin/false")
    else:  # how kaleido says that it ended on the way
        monkeypatch.setattr("kaleido.write_fig_from_object_sync", ended)
    with pytest.raises(ChromiumNotFound, match="need Chrome or Chromium, installed or named by"):
        write_images(ReportInput(frame_of(["A"], seeds=1, points=0, classes=0)), tmp_path / "i")
    assert not (tmp_path / "i").exists()


def test_image_format_is_checked_first(tmp_path, frame_of):
    with refuses("formats"):
        write_images(ReportInput(frame_of(["A"], seeds=1)), tmp_path, formats=["gif"])


def test_browser_that_ends_at_once_is_reported():
    with pytest.raises(chromium.NoChromium), chromium.launch("/bin/false"):
        pass


@needs_chromium
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_page_of_a_monitor(browser, tmp_path, theme):
    monitor = Monitor(tmp_path / "monitor", period="day")
    rng = np.random.default_rng(0)
    for day in range(4):
        y = rng.choice(["cat", HOSTILE], 30)
        p = np.full(30, 0.01) if day == 2 else rng.random(30)
        ids = monitor.observe(y, rng.random(30), p_values=p, compared=99, time=86_400 * day)
        monitor.label(ids, rng.choice(["cat", HOSTILE], 30), time=86_400 * day + 60)
    page = build_monitor_page(monitor, tmp_path / "page.html", title=HOSTILE)
    browser.events.clear()
    scheme(browser, theme)
    browser.open(page)
    assert browser.evaluate("window.engramReport.ready.then(() => 'drawn')") == "drawn"
    assert browser.evaluate("document.querySelectorAll('.js-plotly-plot').length") == 8
    assert browser.evaluate("document.documentElement.dataset.theme") == theme
    assert browser.evaluate("document.title") == HOSTILE
    assert "drift of novelty" in browser.evaluate("document.body.innerText")
    click(browser, "#theme")
    assert browser.evaluate("document.documentElement.dataset.theme") != theme
    assert complaints(browser) == []
