"""The report of a study: what its first screen says, and how it looks in a browser."""

import re

import pytest

from commonwatt.report.study_page import render_study
from commonwatt.report.study_text import headline, interval_text, policy_of, signed_pct, waiting
from tests.report.pages import HOSTILE
from tests.studies.made import make_result


def text_of(page):
    return " ".join(re.sub(r"<[^>]+>", " ", page.split("<body>")[1]).split())


def test_the_first_screen_has_saving_waits_and_assumptions():
    page = text_of(render_study(make_result()))
    first = page.split("What each further step would save")[0]
    assert "1.2% less energy, while every job gets what its owner asked for." in first
    assert re.search(r"Waits change: mean .+ \(today .+\), p95 .+ \(today .+\), longest .+ \(today .+\)\.", first)
    assert "95% interval of the saving: \N{MINUS SIGN}0.5% to 3.0% (jackknife and t over 2 periods)" in first
    assert "Who waits longer" in first
    assert "p99" in first
    assert "Longest" in first
    assert "Size of jobs as requested. step resizing" in first
    assert "Kind of model drawn one of" in first


def test_what_is_known_of_run_times_is_said_loudly():
    loud = "knows every run time exactly"
    assert loud not in render_study(make_result())
    assert loud in render_study(make_result(knowledge="oracle"))


def test_a_log_that_names_no_type_is_said_loudly():
    result = make_result()
    unnamed = result.about.model_copy(update={"names_gpu_types": False})
    assert "compare this with thrifty EASY" in render_study(make_result(about=unnamed))
    assert "compare this with thrifty EASY" not in render_study(result)
    alike = unnamed.model_copy(update={"gpu_types": ("V100",)})
    assert "compare this with thrifty EASY" not in render_study(make_result(about=alike))


@pytest.mark.parametrize(
    ("saved", "said"),
    [
        (0.04, "No energy is saved"), (-0.04, "No energy is saved"), (-1.0, "1.0% more energy"),
        (12.34, "12.3% less energy"), (None, "not known"),
    ],
)  # fmt: skip
def test_the_headline_says_less_more_or_none(saved, said):
    assert said in headline(make_result(conservative_saving_pct=saved))


def test_nodes_without_power_are_not_runs_that_are_missing():
    done = make_result(conservative_saving_pct=None, conservative_saving_interval=None, finished=True)
    assert "the nodes have no power" in headline(done)
    assert interval_text(done) == ""
    begun = make_result(conservative_saving_pct=None, conservative_saving_interval=None, finished=False)
    assert headline(begun).endswith("not known yet.")
    assert interval_text(begun) == "Not all runs are done."


def test_no_interval_is_said():
    assert "one period and one seed" in interval_text(make_result(conservative_saving_interval=None))


@pytest.mark.parametrize(("value", "text"), [(0.0, "0.0%"), (-0.01, "0.0%"), (-3.14, "\N{MINUS SIGN}3.1%")])
def test_a_saving_of_nothing_has_no_sign(value, text):
    assert signed_pct(value) == text


def test_unknown_steps_are_unknown_not_0():
    page = render_study(make_result(finished=False))
    assert '<span class="name">price</span><span></span><span class="value">unknown' in page


def test_a_price_without_a_series_is_said_once_and_is_no_row():
    page = render_study(make_result(finished=True))
    assert '<span class="name">price</span>' not in page
    assert text_of(page).count("The step price is left out, as no price series is given.") == 1


def test_waits_that_stay_are_said_to_stay():
    result = make_result()
    today = policy_of(result, "baseline")
    ours = today.model_copy(update={"role": "ours"})
    same = make_result(policies=(today, ours))
    assert waiting(same).startswith("Waits do not change: mean ")
    none = {"mean_wait_s": 0.0, "p95_wait_s": 0.0, "longest_wait_s": 0.0}
    idle = make_result(policies=tuple(policy.model_copy(update=none) for policy in (today, ours)))
    assert waiting(idle) == "Waits do not change."


def test_names_are_escaped():
    page = render_study(make_result(study=HOSTILE, notes=(HOSTILE,)))
    assert HOSTILE not in page


@pytest.mark.long
@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_and_its_bars_are_drawn(visit, width, scheme):
    page = visit(render_study(make_result()), width=width, color_scheme=scheme).page
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    wide = "[...document.querySelectorAll('.wf-up, .wf-down')].map((bar) => bar.getBoundingClientRect().width)"
    bars = page.evaluate(wide)
    assert len(bars) == 6
    assert min(bars) > 0
    assert page.locator(".wf-down").count() == 1
    box = page.locator(".big").bounding_box()
    assert box["y"] + box["height"] < 900  # on the first screen
    if width == 1400:
        for heading in ("#h-waits", "#h-assumed"):
            assert page.locator(heading).bounding_box()["y"] < 900
    ink, ground = page.evaluate("['color', 'backgroundColor'].map((name) => getComputedStyle(document.body)[name])")
    assert ink != ground


def test_the_page_prints(visit, tmp_path):
    page = visit(render_study(make_result())).page
    page.pdf(path=tmp_path / "study.pdf")
    assert (tmp_path / "study.pdf").read_bytes().startswith(b"%PDF")
