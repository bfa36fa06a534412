"""The report in a real Chromium, without a network. The fixture ``visit`` also checks console and requests."""

import pytest

from commonwatt.report.html import render
from tests.report.make_records import LARGE, MEDIUM, SMALL, Size, make
from tests.report.pages import HOSTILE

FIGURES = ("cost", "energy", "gpus", "power", "queue", "wait", "jct")

MARKS = """id => {
  const figure = document.getElementById(id), box = figure.getBoundingClientRect();
  const count = (what) => figure.querySelectorAll(what).length;
  return {
    width: box.width, height: box.height,
    lines: count('.scatterlayer path.js-line[d]'), bars: count('.barlayer .point path[d]'),
    images: [...figure.querySelectorAll('.heatmaplayer image')].filter((i) => i.href.baseVal).length,
    svg: count('svg.main-svg'),
  };
}"""


def marks(page, figure):
    found = page.evaluate(MARKS, figure)
    assert found["width"] > 200
    assert found["height"] > 100
    assert found["svg"] > 0
    return found


def check_shared_figures(page, policies):
    for name in FIGURES:
        found = marks(page, f"fig-{name}")
        if name in ("cost", "energy"):
            assert found["bars"] >= policies
        else:
            assert found["lines"] >= policies


def no_sideways_scroll(page):
    return page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


@pytest.fixture(scope="module")
def medium():
    return render(*make(MEDIUM))


@pytest.mark.long
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_figure_is_drawn(visit, medium, width, scheme):
    page = visit(medium, width=width, color_scheme=scheme).page
    check_shared_figures(page, 5)
    assert marks(page, "gantt-0")["bars"] > 600
    assert no_sideways_scroll(page)


@pytest.mark.long
def test_text_does_not_overlap_in_the_cost_figure(visit, medium):
    for width in (1400, 390):
        page = visit(medium, width=width).page
        boxes = page.evaluate(
            """() => ['ytick', 'xtick', 'textpoint']
              .flatMap((kind) => [...document.querySelectorAll(`#fig-cost .${kind} text`)])
              .map((t) => t.getBoundingClientRect()).map((b) => [b.left, b.top, b.right, b.bottom])"""
        )
        assert len(boxes) >= 10
        for i, a in enumerate(boxes):
            for b in boxes[:i]:
                apart = a[0] >= b[2] - 1 or b[0] >= a[2] - 1 or a[1] >= b[3] - 1 or b[1] >= a[3] - 1
                assert apart, (a, b)


@pytest.mark.long
def test_what_is_seen_first_is_drawn_first(chromium, medium, tmp_path):
    (tmp_path / "report.html").write_text(medium, encoding="utf-8")
    context = chromium.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.add_init_script("window.requestIdleCallback = (next) => { window.next = next; }")  # no time is ever left
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector("html[data-ready=true]", state="attached")
    drawn = "[...document.querySelectorAll('.figure')].filter((f) => f.querySelector('svg')).map((f) => f.id)"
    assert {"fig-cost", "fig-energy"} <= set(page.evaluate(drawn))
    assert not {"fig-jct", "gantt-0"} & set(page.evaluate(drawn))
    height = page.evaluate("document.getElementById('fig-jct').getBoundingClientRect().height")
    page.evaluate("window.next()")
    assert page.get_attribute("html", "data-drawn") is None
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")  # paper has all of them
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert {*(f"fig-{name}" for name in FIGURES), "gantt-0"} <= set(page.evaluate(drawn))
    assert page.evaluate("document.getElementById('fig-jct').getBoundingClientRect().height") == pytest.approx(
        height, abs=80
    )
    context.close()


@pytest.mark.long
def test_policy_selector(visit, medium):
    page = visit(medium).page
    assert [page.is_visible(f"#panel-{i}") for i in range(5)] == [True, False, False, False, False]
    page.click("#tab-2")
    assert [page.is_visible(f"#panel-{i}") for i in range(5)] == [False, False, True, False, False]
    assert marks(page, "gantt-2")["bars"] > 600
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-3")
    assert page.evaluate("document.activeElement.id") == "tab-3"
    assert page.get_attribute("#tab-3", "aria-selected") == "true"
    assert page.get_attribute("#tab-2", "tabindex") == "-1"
    assert marks(page, "gantt-3")["bars"] > 600
    page.click("#tab-0")
    assert marks(page, "gantt-0")["width"] > 1000


@pytest.mark.long
def test_logarithmic_costs(visit, medium):
    page = visit(medium).page
    assert page.get_attribute("#log", "aria-pressed") == "false"
    page.click("#log")
    assert page.get_attribute("#log", "aria-pressed") == "true"
    assert page.evaluate("document.getElementById('fig-cost')._fullLayout.xaxis.type") == "log"
    assert page.evaluate("document.querySelectorAll('#fig-cost .scatterlayer .point').length") == 15
    assert page.is_visible(".key.log")
    page.click("#log")
    assert marks(page, "fig-cost")["bars"] == 10
    assert not page.is_visible(".key.log")


@pytest.mark.long
def test_tables_are_sorted_by_value(visit, medium):
    page = visit(medium).page
    column = "#panel-0 table:has(caption:text-is('Tenants under lookahead')) "
    head = page.locator(f"{column} thead th:nth-child(2)")
    values = f"{column} tbody td:nth-child(2)"
    head.locator("button").focus()
    page.keyboard.press("Enter")
    numbers = [int(text.replace(",", "")) for text in page.locator(values).all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    numbers = [int(text.replace(",", "")) for text in page.locator(values).all_inner_texts()]
    assert numbers == sorted(numbers)


def test_whole_run(visit):
    result, records = make(MEDIUM, ("a",))
    records[0].jobs.ended_s[7] += 60 * 86400.0
    page = visit(render(result, records)).page
    shown = "['fig-gpus', 'gantt-0'].map((id) => document.getElementById(id)._fullLayout.xaxis.range[1])"
    assert max(page.evaluate(shown)) < 20
    page.click(".whole >> nth=0")
    assert min(page.evaluate(shown)) > 60
    assert page.get_attribute(".whole >> nth=1", "aria-pressed") == "true"


@pytest.mark.long
def test_names_are_shown_as_they_are(visit):
    result, records = make(SMALL, (HOSTILE, "b"), name=(HOSTILE,) * SMALL.jobs, tenant=(HOSTILE,) * SMALL.jobs)
    page = visit(render(result.model_copy(update={"scenario": HOSTILE}), records)).page
    assert page.evaluate("window.hacked") is None
    assert page.inner_text("h1") == HOSTILE
    page.evaluate("Plotly.Fx.hover('gantt-0', [{curveNumber: 0, pointNumber: 0}])")
    assert f"{HOSTILE} of {HOSTILE}" in page.text_content("#gantt-0 .hovertext")
    assert page.locator("img").count() == 0


@pytest.mark.long
def test_many_nodes_and_policies(visit):
    size = Size(nodes=300, gpus=8, jobs=3000, tenants=60, span_s=2e5, mean_run_s=2e4)
    report = render(*make(size, tuple(f"policy number {i}" for i in range(9))))
    for width in (1400, 390):
        page = visit(report, width=width).page
        check_shared_figures(page, 9)
        assert marks(page, "gantt-0")["images"] == 1
        page.click("#tab-8")
        assert marks(page, "gantt-8")["images"] == 1
        assert no_sideways_scroll(page)


@pytest.mark.long
def test_one_policy_one_job(visit):
    result, records = make(Size(nodes=1, gpus=1, jobs=1, tenants=1, span_s=0.0, mean_run_s=30.0), ("alone",))
    page = visit(render(result, records)).page
    check_shared_figures(page, 1)
    assert marks(page, "gantt-0")["bars"] == 1


@pytest.mark.long
def test_nothing_recorded(visit):
    result, _ = make(SMALL)
    page = visit(render(result, [])).page
    assert marks(page, "fig-cost")["bars"] >= 5
    assert page.is_visible("text=There is no record of this run.")
    page.click("#tab-1")
    assert page.is_visible("#panel-1")


@pytest.mark.long
def test_printed(visit, medium, tmp_path):
    seen = visit(medium)
    seen.page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert marks(seen.page, "fig-gpus")["width"] > 1000  # back to the screen's width


@pytest.mark.long
def test_large(visit):
    report = render(*make(LARGE))
    for width in (1400, 390):
        page = visit(report, width=width).page
        check_shared_figures(page, 5)
        assert marks(page, "gantt-0")["images"] == 1
        assert no_sideways_scroll(page)
