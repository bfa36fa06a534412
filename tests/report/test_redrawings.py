"""The pictures of ``reproduce all``: each figure as its paper draws it, from what the paper prints; the report."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from commonwatt.model.results import ReproducePoint, ReproduceRow
from commonwatt.model.suite_results import ReproduceAllResult, ReproduceTopicResult
from commonwatt.report.claims_page import render_claims, with_unit
from commonwatt.report.redrawing import _DRAW, Redrawing, RedrawnPanel, draw_printed
from commonwatt.reproduce import registry
from commonwatt.reproduce.collection import drawable, recorded, redrawings
from commonwatt.reproduce.verdicts import judged, legend


def made() -> ReproduceAllResult:
    """Return a topic of two seeds, and one that failed."""

    def over_seeds(quantity, paper, *values):
        return judged("good", [ReproduceRow(quantity=quantity, paper=paper, ours=value, unit="x", comparable=True)
                               for value in values])  # fmt: skip

    common = {"title": "t", "paper": "P, Fig. 1", "stand_in": None, "seeds": (0, 1), "input_digests": ("d", "d"),
              "x_name": "x", "wall_s": 1.0, "claims": (), "others": (), "points": (), "notes": ()}  # fmt: skip
    good = ReproduceTopicResult.model_validate({
        **common, "name": "good", "state": "done", "reason": None, "claims": (over_seeds("n", 2.0, 2.0, 3.0),),
        "others": (over_seeds("extra", None, 1.0, 1.0),), "notes": ("a <note>",),
        "points": (ReproducePoint(series="s", quantity="q", x=1.0, mean=2.0, sd=0.5, unit="-"),),
    })  # fmt: skip
    broken = ReproduceTopicResult.model_validate({**common, "name": "broken", "state": "failed", "reason": "no"})
    return ReproduceAllResult(version="0", command="c", extent="quick", seed=0, seeds=(0, 1), verdicts={},
                              topics=(good, broken), wall_s=2.0)  # fmt: skip


BARS = RedrawnPanel("bars", "t", groups={"A": {"a": "n", "b": "extra"}, "B": {"a": "gone"}})


@pytest.mark.slow
def test_the_report_is_one_file(tmp_path):
    result = made()
    printed, redrawing = tmp_path / "printed.svg", Redrawing((BARS,), unprinted="The paper prints no value of this.")
    draw_printed(result.topics[0], redrawing, printed)
    page = render_claims(result, {"good": (b"<svg/>", printed.read_bytes())}, {"good": redrawing})
    assert page.count("data:image/svg+xml") == 2
    assert 'src="http' not in page
    assert "<script" not in page
    for part in ("a &lt;note&gt;", "2.5", "2 to 3", "does not hold", "failed", "1 value that the paper does not print",
                 "<figcaption>Ours, seed 0. The paper prints no value of this.</figcaption>",
                 "<figcaption>What the paper prints of it (hatched bars), and ours in the same axes: means over 2 ",
                 "seeds; whiskers: the least and the greatest.</figcaption>"):  # fmt: skip
        assert part in page
    assert page == render_claims(result, {"good": (b"<svg/>", printed.read_bytes())}, {"good": redrawing})


def test_the_report_begins_with_counts_and_what_does_not_hold():
    page = render_claims(made(), {}, {}, ("how <near>",), {"P": ("Fig. 2: no value",)}, {"by hand": {"holds": 1}})
    places = [page.index(part) for part in (
        '<th class="n fails" scope="col">does not hold</th>', "Claims that do not hold: 1", 'id="contents"',
        'id="paper-1"', 'id="good"', "Figures and tables without claims (1)", 'id="rules"', "how &lt;near&gt;",
        'id="rule-1"')]  # fmt: skip
    assert places == sorted(places)
    row = '<th scope="row"><a href="#paper-1">P</a></th>' + "".join(
        f'<td class="n {name}">{number}</td>' for name, number in (
            ("zero", 0), ("zero", 0), ("fails", 1), ("zero", 0))) + '<td class="n">1</td>'  # fmt: skip
    assert row in page
    assert '<th scope="row">of these, by hand</th><td class="n holds">1</td>' in page
    assert '<a href="#good-1">n</a>: <span class="note">ours 2.5×, paper 2×</span>' in page
    assert "1 claim, 1 does not hold" in page


def test_links_of_the_report_lead_to_places_in_it():
    record = Path(__file__).parents[2] / "docs" / "data" / "reproduce-full.json"
    for result in (made(), recorded(record)):
        page = render_claims(result, {}, redrawings(), legend(), registry.left_out())
        places = re.findall(r' id="([^"]*)"', page)
        assert len(places) == len(set(places))
        assert set(re.findall(r'href="#([^"]*)"', page)) <= set(places)
        assert not re.search(r'(href|src)="(?!#|data:)', page)
        for rule in {claim.rule for topic in result.topics for claim in topic.claims} - {"not compared"}:
            shown = rule.replace("as said at the top", "as said above")
            assert len(re.findall(rf"</b>: {re.escape(escape(shown))}\. ", page)) == 1, rule
        failing = [c for topic in result.topics for c in topic.claims if c.verdict == "does not hold"]
        listed = page[page.index('id="failing"') : page.index('id="contents"')]
        assert listed.count("<li>") == len(failing) > 0


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_the_report_fits_its_window_and_begins_with_the_verdicts(visit, width):
    record = Path(__file__).parents[2] / "docs" / "data" / "reproduce-full.json"
    page = visit(render_claims(recorded(record), {"etf-figure-5": (None, b"<svg/>")}, redrawings()), width=width).page
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    bottom = page.evaluate("document.querySelector('.counts').getBoundingClientRect().bottom")
    assert bottom < 700  # of 900 on the first screen
    assert page.evaluate("document.getElementById('failing').getBoundingClientRect().bottom") < 900
    page.click("#failing ~ .failing a >> nth=0")
    row = page.evaluate("document.querySelector(':target').getBoundingClientRect().top")
    assert 0 <= row < 900
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = false")
    seen = "document.querySelector('details table').checkVisibility()"
    assert not page.evaluate(seen)
    page.emulate_media(media="print")  # paper has what is folded
    assert page.evaluate(seen)


def test_the_report_shows_units_that_are_known_and_no_others():
    assert [with_unit(value, unit) for value, unit in ((7.532, "%"), (5.74, "s"), (1.453e6, "-"), (2, "x"), (3.0, ""),
                                                       (True, "-"), (None, "s"), ("de", "-"))] == [
        "7.53%", "5.74 s", "1,453,000", "2×", "3", "yes", "unknown", "de"]  # fmt: skip
    assert ">-<" not in render_claims(made(), {}, {})


@pytest.mark.slow
def test_pictures_are_described_one_by_one(tmp_path):
    good, printed = made().topics[0], tmp_path / "printed.svg"
    panels = (BARS, RedrawnPanel("points", "where", x="time", y="energy", points=[["A", 1, "n"]]),
              RedrawnPanel("lines", "how", x="N", logarithmic=True, y="s", curves="q", only=["s"], across={"end": "n"}),
              )  # fmt: skip
    redrawing = Redrawing(panels)
    draw_printed(good, redrawing, printed)
    page = render_claims(made(), {"good": (b"<svg/>", printed.read_bytes())}, {"good": redrawing})
    described = (
        "t: bars of the paper and of ours for A, B; each has a, b. "
        "where: points of the paper and of ours for A (energy) against time. "
        "how (s, logarithmic): our curves of s against N; lines where the paper prints a value: end."
    )
    assert re.findall(r'alt="([^"]*)"', page) == ["t: q against x, for s.", described]
    assert "Pale" not in page
    alone = good.claims[0].model_copy(update={"verdict": "not comparable"})
    other = good.model_copy(update={"claims": (alone,)})
    result = made().model_copy(update={"topics": (other,)})
    assert "Pale: not comparable." in render_claims(result, {"good": (None, b"<svg/>")}, {"good": redrawing})
    assert [bar.get_alpha() for bar in drawn(BARS, other).patches if bar.get_height() > 0] == [0.35, 0.35, 1.0]


def test_a_report_without_figures_of_ours_says_so():
    result = made()
    said = "figures and curves of ours are not in it"
    assert said in render_claims(result, {"good": (None, b"<svg/>")}, {})
    assert said not in render_claims(result, {"good": (b"<svg/>", None)}, {})


def drawn(panel, topic):
    axes = Figure().subplots()
    _DRAW[panel.kind](axes, panel, topic)
    return axes


def test_bars_are_the_papers_value_where_it_prints_one_and_ours_with_its_spread():
    good = made().topics[0]
    axes = drawn(BARS, good)
    bars = [(bar.get_height(), bool(bar.get_hatch())) for bar in axes.patches if bar.get_height() > 0]
    assert bars == [(2.0, True), (2.5, False), (1.0, False)]  # the paper prints n and not extra; there is no "gone"
    first = axes.containers[2].lines[2][0].get_segments()[0]
    assert [y for _, y in first.tolist()] == [2.0, 3.0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A", "B"]


def test_points_and_curves_show_the_papers_value_only_where_it_prints_one():
    good = made().topics[0]
    points = drawn(RedrawnPanel("points", "t", points=[["n", 5, "n"], ["e", "extra", 7], ["m", "extra", "n"]]), good)
    shown = {line.get_label(): (line.get_xdata(), line.get_ydata()) for line in points.lines}
    assert {name: (x[0], y[0]) for name, (x, y) in shown.items() if ": no value" not in name} == {
        "n, paper": (5, 2.0), "n, ours": (5, 2.5), "e, ours": (1.0, 7), "m, ours": (1.0, 2.5),
    }  # fmt: skip
    assert [name for name in shown if ": no value" in name] == [
        "e, paper: no value along x",
        "m, paper: no value along x",
    ]
    lines = drawn(RedrawnPanel("lines", "t", curves="q", across={"N": "n", "E": "extra"}, level={"N": "n"}), good)
    labels = [text.get_text() for text in lines.get_legend().get_texts()]
    assert sorted(labels) == ["N: ours, 2.5", "N: paper, 2", "N: paper, 2", "s, ours"]


def test_a_panel_without_any_value_is_left_out():
    good = made().topics[0]
    gone = RedrawnPanel("bars", "t", groups={"A": {"a": "gone"}})
    points = RedrawnPanel("points", "t", points=[["n", 5, "extra"]])
    lines = RedrawnPanel("lines", "t", curves="q")
    found = drawable(good, Redrawing((BARS, gone, points, lines, RedrawnPanel("lines", "t", curves="r")), "u"))
    assert found == Redrawing((BARS, points, lines), "u")


def test_every_figure_has_a_description_whose_claims_were_recorded():
    found = redrawings()
    assert set(found) == {topic.name for topic in registry.of_papers()}
    recorded = json.loads((Path(__file__).parents[2] / "docs" / "data" / "reproduce-full.json").read_text())
    claims = {topic["name"]: {claim["quantity"]: claim["paper"] for claim in topic["claims"]} | dict.fromkeys(
        topic["others"]) for topic in recorded["topics"]}  # fmt: skip
    for name, redrawing in found.items():
        for panel in redrawing.panels:
            named = [*(claim for group in panel.groups.values() for claim in group.values()), *panel.across.values(),
                     *panel.level.values(), *(place for _, *at in panel.points for place in at)]  # fmt: skip
            values = [claims[name][each] for each in named if isinstance(each, str)]
            assert panel.curves or any(isinstance(value, float) for value in values), (name, panel.title)
        if not redrawing.panels and not redrawing.unprinted:
            assert "table" in name or name in ("gsharp-searches", "gsharp-learners")  # a table needs no picture


def test_a_place_that_no_claim_gives_is_one_that_its_claim_names():
    """A typed place along an axis is printed by the paper, as the name of the claim beside it says."""
    for name, redrawing in redrawings().items():
        for panel in redrawing.panels:
            for _, *places in panel.points:
                named = " ".join(place for place in places if isinstance(place, str))
                typed = [f"{place:g}" for place in places if not isinstance(place, str)]
                assert all(place in named for place in typed), (name, panel.title)


def test_what_was_put_in_is_not_drawn_as_reproduced():
    recorded = json.loads((Path(__file__).parents[2] / "docs" / "data" / "reproduce-full.json").read_text())
    put_in = {(topic["name"], claim["quantity"]) for topic in recorded["topics"] for claim in topic["claims"]
              if claim["why"].startswith("put in: power at")}  # fmt: skip
    drawn = {(name, quantity) for name, redrawing in redrawings().items() for panel in redrawing.panels
             for group in panel.groups.values() for quantity in group.values()}  # fmt: skip
    assert put_in
    assert not put_in & drawn
