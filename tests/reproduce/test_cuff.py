"""CUFF run again, where there are no traces and where there are."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from commonwatt.data import third_party
from commonwatt.forecasting._rolling import RollingForecasts
from commonwatt.model.demand import LEVELS
from commonwatt.reproduce.papers import cuff
from commonwatt.reproduce.papers.cuff import (
    CuffStudy,
    _best_network,
    _comparable_saving,
    _less_under_prediction,
    _under_high_load,
    rows_of,
)
from commonwatt.reproduce.papers.cuff_traces import Trace
from tests.cli.console import run
from tests.forecasting.made import walk

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def answer(tmp_path_factory):
    """On a generated series: this machine's traces are not looked at."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(third_party.VARIABLE, str(tmp_path_factory.mktemp("none")))
        picture = tmp_path_factory.mktemp("cuff") / "cuff.svg"
        done = run("reproduce", "cuff", "--quick", "--plot", picture, "--json")
    assert done.code == 0, done.err
    assert picture.read_text().startswith("<?xml")
    return done.document


def row(answer, start):
    (found,) = [each for each in answer["rows"] if each["quantity"].startswith(start)
                and "our networks" not in each["quantity"]]  # fmt: skip
    return found


def test_comparable_is_a_row_whose_paper_value_was_come_by_in_the_same_way():
    """Philly is the paper's own trace; its Table 2 follows from no formula the paper gives."""
    series = walk(600)
    origins = np.arange(300, 595)
    rng = np.random.default_rng(0)
    gpus = np.sort(rng.integers(50, 80, (len(origins), 5, len(LEVELS))), axis=2).astype(float)
    rolled = RollingForecasts(origins, LEVELS, gpus, series.gpus[origins[:, None] + np.arange(1, 6)], 1)
    trace = Trace("Philly", "Philly", series, 400, 2490, comparable=True, note="")
    made = CuffStudy(trace, {"gru": rolled}, {"gru": rolled})
    comparable = {row.quantity.split(",")[0] for row in rows_of(made) if row.comparable}
    assert comparable == {"Table 3: point forecast", "Table 4: MAE within 2 points of the point forecast's",
                          "Fig. 4: MAE under 50 GPUs at every level",
                          "Table 4: the point forecast under-predicts less often than quantile .5",
                          "Fig. 4: under high demand CUFF (quantile .90) under-predicts at most half as often",
                          "Fig. 5: under-prediction of the threshold method (+5%)",
                          "Fig. 5: the threshold method saves less than the point forecast",
                          ("Fig. 4: above the median of demand MAE of CUFF (quantile .90) within 2 points of the point "
                          "forecast's"), "Fig. 5: under-prediction falls as the quantile rises",
                          "Fig. 5: the saving at a target of 98% is comparable to the point forecast's"}  # fmt: skip
    rows = {row.quantity: row for row in rows_of(made)}
    assert rows["Table 2: energy overhead of a delay of 1 min, Philly"].paper == 26.0
    # On another log under the paper's name only what compares two forecasts of that log is judged.
    elsewhere = {row.quantity.split(",")[0] for row in rows_of(replace(made, trace=replace(trace, comparable=False)))
                 if row.comparable}  # fmt: skip
    assert elsewhere == {"Table 4: MAE within 2 points of the point forecast's",
                         "Table 4: the point forecast under-predicts less often than quantile .5",
                         "Fig. 4: under high demand CUFF (quantile .90) under-predicts at most half as often",
                         "Fig. 5: the threshold method saves less than the point forecast",
                         ("Fig. 4: above the median of demand MAE of CUFF (quantile .90) within 2 points of the point "
                         "forecast's"), "Fig. 5: under-prediction falls as the quantile rises",
                         "Fig. 5: the saving at a target of 98% is comparable to the point forecast's"}  # fmt: skip
    # Our networks stand beside without a verdict, each row of forecasts with its twin.
    ours = rows_of(replace(made, ours=True))
    assert {row.paper for row in ours} == {None}
    assert not any(row.comparable for row in ours)
    assert {row.quantity.replace(", our networks", "") for row in ours} == {
        quantity for quantity in rows if not quantity.startswith("Table 2")}  # fmt: skip
    assert all(row.quantity.endswith(", our networks, Philly") for row in ours)
    unknown = rows_of(replace(made, trace=replace(trace, paper="", comparable=False)))
    assert not any(row.comparable for row in unknown)
    assert {row.paper for row in unknown} == {None}


def test_of_a_cluster_of_unknown_size_savings_have_rows_without_a_value():
    series = walk(600)
    origins = np.arange(300, 595)
    gpus = np.broadcast_to(series.gpus[origins][:, None, None], (len(origins), 5, len(LEVELS))).copy()
    rolled = RollingForecasts(origins, LEVELS, gpus, series.gpus[origins[:, None] + np.arange(1, 6)], 1)
    trace = Trace("Alibaba", "Alibaba", series, 400, None, comparable=False, note="")
    rows = [row for row in rows_of(CuffStudy(trace, {"gru": rolled}, {"gru": rolled})) if "sav" in row.quantity]
    assert len(rows) == 5
    assert {row.ours for row in rows} == {None}
    judged = [row for row in rows if row.paper is not None]
    assert len(judged) == 3
    assert all("nothing of the size of the cluster" in row.note for row in judged)


def test_claims_are_judged_by_networks_on_raw_levels(monkeypatch):
    """The paper's see 120 values; ours see changes, and stand beside."""
    asked = []
    monkeypatch.setattr(cuff, "forecasts", lambda *given, point, raw: asked.append((given[1], point, raw)))
    kinds, bar = ("gru", "cnn"), SimpleNamespace(done=lambda: None)
    request = SimpleNamespace(extent="full", seed=0)
    papers, ours = (cuff._study(None, kinds, request, bar, ours=own) for own in (False, True))
    assert (papers.ours, ours.ours) == (False, True)
    assert asked == [(kind, point, raw) for raw in (True, False) for kind in kinds for point in (True, False)]


def test_what_our_networks_give_is_in_the_note_of_the_claim():
    trace = Trace("Venus", "Venus", walk(600), 400, None, comparable=False, note="a log")
    rows = [_less_under_prediction(CuffStudy(trace, ours=ours), 43.9, quantile)
            for ours, quantile in ((False, 30.0), (True, 50.0))]  # fmt: skip
    claim, beside = cuff._beside(rows)
    assert (claim.ours, beside.ours, beside.note) == (True, False, rows[1].note)
    assert claim.note == f"{rows[0].note}; our networks: no"


def test_what_the_paper_says_of_forecasts_beside_each_other():
    """On Philly the point forecast under-predicts less, on its other logs the quantile: as each log has it."""
    series = walk(600)

    def on(name):
        return CuffStudy(Trace(name, name, series, 400, None, comparable=False, note="a log"))

    venus, philly = (_less_under_prediction(on(name), 43.9, 47.4) for name in ("Venus", "Philly"))
    assert (venus.paper, venus.ours, venus.comparable) == (True, False, True)
    assert (philly.paper, philly.ours) == (True, True)
    assert "47.4%" in venus.note
    assert "43.9%" in venus.note
    assert venus.quantity != philly.quantity
    best = {"gru": (20.0, 5.0), "cnn": (23.0, 5.6)}
    assert _best_network(on("Venus"), best | {"cnn": (21.0, 5.6)}).ours is False  # better, but not much
    assert _best_network(on("Venus"), best).ours is True
    assert _best_network(on("Venus"), best | {"bilstm": (19.0, 6.0)}).ours is False
    alike = dict.fromkeys(("gru", "bilstm", "cnn"), (20.7, 0.56))
    tie = _best_network(on("Alibaba"), alike | {"cnn": (20.71, 0.561)})
    assert (tie.comparable, tie.note.startswith("a tie")) == (False, True)
    assert _best_network(on("Alibaba"), alike | {"cnn": (20.8, 0.56)}).comparable
    high = [_under_high_load(on("Alibaba"), 83.0, under) for under in (7.6, 41.5, 41.6)]
    assert [row.ours for row in high] == [True, True, False]
    assert [_comparable_saving(on("Venus"), saved, 20.0).ours for saved in (30.0, 18.0, 17.9)] == [True, True, False]


@pytest.mark.long
def test_every_table_and_figure_is_there(answer):
    said = {row["quantity"].split(":")[0] for row in answer["rows"]}
    assert {"Table 2", "Table 3", "Table 4", "Fig. 4", "Fig. 5"} <= said
    assert {point["quantity"].split(":")[0] for point in answer["points"]} >= {"Fig. 3", "Fig. 4", "Fig. 5"}
    assert not any(row["comparable"] for row in answer["rows"])
    assert all("no public trace here" in row["note"] for row in answer["rows"])


@pytest.mark.long
def test_what_must_hold_on_any_series(answer):
    target = row(answer, "Fig. 5: performance at a target of 98%")["ours"]
    assert 90 < target <= 100
    saved = [row(answer, f"Fig. 5: saving {which}")["ours"] for which in ("of the point", "of the threshold")]
    assert saved[0] > saved[1]
    delays = [row(answer, f"Table 2: energy overhead of a delay of {minutes} min")["ours"] for minutes in (1, 2)]
    assert delays[1] == pytest.approx(2 * delays[0])
    for quantity in ("Fig. 4, 5: under-prediction, GRU", "Fig. 4, 5: under-prediction, GRU, our networks"):
        under = [p["mean"] for p in answer["points"] if p["quantity"] == quantity]
        assert under == sorted(under, reverse=True) != []
