"""No number of what was reproduced is typed: a program writes the pages from the recorded results."""

from __future__ import annotations

import json
import re
import sys

import pytest

from commonwatt.model.results import ReproduceRow
from commonwatt.reproduce.verdicts import judged
from tests.docs.pages import ROOT

sys.path.insert(0, str(ROOT / "docs" / "hooks"))
import measured_pages

DATA = ROOT / "docs" / "data"
NUMBER = re.compile(r"\d+(?:\.\d+)?%|\b\d+\.\d+\b")


@pytest.mark.parametrize("page", list(measured_pages.pages()), ids=lambda page: page.stem)
def test_pages_are_what_the_results_say(page):
    assert page.read_text(encoding="utf-8") == measured_pages.pages()[page]


def test_another_result_gives_another_page(monkeypatch):
    changed = json.loads(json.dumps({name: list(pair) for name, pair in measured_pages.results().items()}))
    changed["gsharp-figure-10"][0]["claims"][0]["ours"] = 123.456
    monkeypatch.setattr(measured_pages, "results", lambda: changed)
    pages = measured_pages.pages()
    differ = {page.stem for page, text in pages.items() if page.read_text(encoding="utf-8") != text}
    assert differ == {"claims", "measured"}


def test_a_field_that_was_not_recorded_is_an_error():
    with pytest.raises(KeyError):
        measured_pages.filled("{etf-figure-3 | no such quantity}")


def test_remarks_have_no_typed_results():
    """Numbers outside fields are figures, tables, settings and sizes: no percentage and no decimal but a setting's."""
    allowed = {"4.3", "3.4", "6.5"}  # sections and definitions
    for name, text in measured_pages.remarks().items():
        if name in ("claims", "leaderboard"):
            continue
        bare = measured_pages.FIELD.sub("", text)
        assert set(NUMBER.findall(bare)) <= allowed, name


def test_not_reproduced_has_no_number_outside_what_is_generated():
    page = (ROOT / "docs" / "explanation" / "not-reproduced.md").read_text(encoding="utf-8")
    papers = page[: page.index("## Not tested")]
    assert NUMBER.findall(measured_pages.BLOCK.sub("", papers)) == []


def test_recorded_verdicts_are_those_of_the_rules():
    seen = set()
    for topic, _ in measured_pages.results().values():
        for claim in topic["claims"]:
            if claim["rule"] == "not compared":  # the program that was run says why, and gives no rule
                continue
            values = {key: claim[key] for key in ("quantity", "paper", "ours", "unit", "held_pct")}
            found = judged(topic["name"], [ReproduceRow(**values, comparable=True, note="")])
            assert (found.verdict, found.rule, found.why) == (claim["verdict"], claim["rule"], claim["why"])
            seen.add(found.verdict)
    assert seen >= {"holds", "holds with changes", "does not hold"}


def test_every_topic_of_the_papers_was_recorded():
    from commonwatt.reproduce.registry import of_papers

    assert set(measured_pages.results()) == {topic.name for topic in of_papers()}


def test_recorded_scores_are_of_these_suites():
    from commonwatt.bench.decisions import SUITES

    recorded = json.loads((DATA / "bench.json").read_text(encoding="utf-8"))
    assert recorded["extent"] == "default"
    assert {s["name"]: s["version"] for s in recorded["suites"]} == {s.name: s.version for s in SUITES}
    for suite in SUITES:
        (own,) = [s for s in recorded["suites"] if s["name"] == suite.name]
        names = {solver["name"] for solver in own["solvers"] if solver["kind"] in ("ours", "baseline")}
        assert names == {e.name for e in suite.entrants(False) if e.kind in ("ours", "baseline")}  # noqa: FBT003
