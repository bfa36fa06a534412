"""CUFF run again, where there are no traces and where there are."""

from __future__ import annotations

import pytest

from commonwatt.data import locate
from tests.cli.console import run

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """On a generated series: this machine's traces are not looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(locate.VARIABLE, str(tmp_path_factory.mktemp("none")))
        picture = tmp_path_factory.mktemp("cuff") / "cuff.svg"
        done = run("reproduce", "cuff", "--quick", "--plot", picture, "--json")
    assert done.code == 0, done.err
    assert picture.read_text().startswith("<?xml")
    return done.document


def row(answer, start):
    (found,) = [each for each in answer["rows"] if each["quantity"].startswith(start)]
    return found


@pytest.mark.slow
def test_every_table_and_figure_is_there(answer):
    said = {row["quantity"].split(":")[0] for row in answer["rows"]}
    assert {"Table 2", "Table 3", "Table 4", "Fig. 4", "Fig. 5"} <= said
    assert {point["quantity"].split(":")[0] for point in answer["points"]} >= {"Fig. 3", "Fig. 4", "Fig. 5"}
    assert not any(row["comparable"] for row in answer["rows"])
    assert all("no public trace at hand" in row["note"] for row in answer["rows"])


@pytest.mark.slow
def test_what_must_hold_on_any_series(answer):
    target = row(answer, "Fig. 5: performance at a target of 98%")["ours"]
    assert 90 < target <= 100
    saved = [row(answer, f"Fig. 5: saving {which}")["ours"] for which in ("of the point", "of the threshold")]
    assert saved[0] > saved[1]
    delays = [row(answer, f"Table 2: energy overhead of a delay of {minutes} min")["ours"] for minutes in (1, 2)]
    assert delays[1] == pytest.approx(2 * delays[0])
    under = [p["mean"] for p in answer["points"] if p["quantity"].startswith("Fig. 4, 5: under-prediction")]
    assert under == sorted(under, reverse=True)
