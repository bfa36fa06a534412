"""Suites: problems never change, scores do not depend on the machine, and a worse score is reported."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest

from commonwatt.bench import decisions
from commonwatt.bench.decisions import SUITES
from commonwatt.bench.suite import YARDSTICK, Bench, BenchCase, BenchOutcome, Entrant, Suite, worse
from commonwatt.model.errors import InputError
from commonwatt.model.suite_results import BenchResult
from commonwatt.partitioning import Market
from commonwatt.simulation.workload import prepare


def toy(values: dict[str, float], *, larger: bool = False, bound: float | None = 2.0, version: int = 1) -> Suite:
    cases = [BenchCase("a", 1.0, None if bound is None else lambda: bound), BenchCase("b", 4.0, None)]
    entrants = [
        Entrant(name, "ours", lambda problem, seed, v=value: BenchOutcome(v * problem, 3))
        for name, value in values.items()
    ]
    return Suite(
        "toy", version, "t", "m", "a", "plain", lambda quick: cases[: 1 if quick else 2], lambda quick: entrants,
        larger_is_better=larger,
    )  # fmt: skip


def test_scores_by_hand():
    (suite,) = Bench([toy({"better": 0.5, "plain": 1.0, "lacking": 1.0})]).run().suites
    assert [(s.name, s.score) for s in suite.solvers] == [
        ("better", pytest.approx(math.sqrt(0.25 * 0.5))),  # 0.5 over the bound 2, and 2 over plain's 4
        ("lacking", pytest.approx(math.sqrt(0.5))),
        ("plain", pytest.approx(math.sqrt(0.5))),
    ]
    assert suite.solvers[0].worst == pytest.approx(0.5)
    assert suite.solvers[0].evaluations == 6
    larger = Bench([toy({"better": 2.0, "plain": 1.0}, larger=True)], quick=True).run().suites[0]
    assert {s.name: s.score for s in larger.solvers} == {"better": 1.0, "plain": 2.0}


def test_a_missing_package_is_named():
    suite = toy({"plain": 1.0})
    peers = [Entrant("peer", "peer", lambda p, s: BenchOutcome(1.0), ("no-such-distribution",))]
    both = Suite(
        "toy", 1, "t", "m", "a", "plain", suite.cases, lambda quick: [*suite.entrants(quick), *peers]
    )  # fmt: skip
    found = {solver.name: solver for solver in Bench([both]).run().suites[0].solvers}
    assert (found["peer"].state, found["peer"].score) == ("missing", None)
    assert found["peer"].reason == "no-such-distribution is not installed"


def test_a_peer_that_cannot_be_imported_is_missing():
    def broken(problem, seed):
        raise ModuleNotFoundError("No module named 'qdldl'", name="qdldl")

    suite = toy({"plain": 1.0})
    peers = [Entrant("peer", "peer", broken, ("numpy",))]
    both = Suite("toy", 1, "t", "m", "a", "plain", suite.cases, lambda quick: [*suite.entrants(quick), *peers])
    found = {solver.name: solver for solver in Bench([both]).run().suites[0].solvers}
    assert (found["peer"].state, found["peer"].reason) == ("missing", "No module named 'qdldl'")
    assert found["plain"].state == "done"


def test_regressions():
    then, now = (Bench([toy({"a": a, "b": b, "plain": 1.0})]).run() for a, b in ((1.0, 1.0), (1.02, 1.5)))
    assert worse(then, then) == []
    assert [(w.solver, w.recorded, w.now) for w in worse(then, now) if not w.problem] == [
        ("b", pytest.approx(math.sqrt(0.5)), pytest.approx(1.5 * math.sqrt(0.5))),
        ("a", pytest.approx(math.sqrt(0.5)), pytest.approx(1.02 * math.sqrt(0.5))),
    ]
    assert {w.solver for w in worse(then, now, tolerance=0.05)} == {"b"}
    assert worse(now, then) == []
    gone = Bench([toy({"a": 1.0, "plain": 1.0})]).run()
    assert [(w.solver, w.now) for w in worse(then, gone)] == [("b", None)]
    more = then.model_copy(update={"suites": (*then.suites, then.suites[0].model_copy(update={"name": "more"}))})
    assert {(w.suite, w.solver, w.now) for w in worse(more, then)} == {("more", s, None) for s in ("a", "b", "plain")}
    assert worse(more, then, every_suite=False) == []
    for other in (Bench([toy({"plain": 1.0})], quick=True).run(), Bench([toy({"plain": 1.0}, version=2)]).run()):
        with pytest.raises(InputError, match="as recorded"):
            worse(then, other)


def test_a_problem_that_got_worse_is_not_hidden_by_the_others():
    then = Bench([toy({"a": 1.0, "plain": 1.0})]).run()
    suite = then.suites[0]
    one, *others = suite.scores

    def now(**update):
        scores = (one.model_copy(update=update), *others)
        return then.model_copy(update={"suites": (suite.model_copy(update={"scores": scores}),)})

    found = worse(then, now(ratio=one.ratio * 1.02))
    assert [(w.solver, w.problem, w.now) for w in found] == [(one.solver, one.problem, one.ratio * 1.02)]
    assert worse(then, now(ratio=one.ratio * 0.9)) == []


def test_another_yardstick_is_told_of():
    """A baseline that others are divided by has 1 whatever becomes of it."""
    then = Bench([toy({"a": 1.0, "plain": 1.0})]).run()
    suite = then.suites[0]
    for factor in (0.9, 1.1):
        scores = tuple(each.model_copy(update={"reference": each.reference * factor}) for each in suite.scores)
        now = then.model_copy(update={"suites": (suite.model_copy(update={"scores": scores}),)})
        assert [(w.solver, w.problem) for w in worse(then, now)] == [(YARDSTICK, p) for p in suite.problems]


def test_suites_are_told_apart():
    assert [suite.name for suite in SUITES] == ["placement", "week", "market", "mig", "mapping", "slices", "demand"]
    for suite in SUITES:
        names = [entrant.name for entrant in suite.entrants(False)]  # noqa: FBT003
        assert len(names) == len(set(names))
        assert suite.reference in names
        assert {e.name for e in suite.entrants(True) if not e.few} >= {suite.reference}  # noqa: FBT003


def of_arrays(*arrays: object) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.round(np.asarray(array, dtype=float), 6).tobytes())
    return sha.hexdigest()[:12]


@pytest.mark.slow
def test_problems_never_change():
    """A change here needs a higher version of the suite, and new recorded scores. Third-party data changes nothing."""
    market, mapping = decisions.market("small", 0), decisions.mapping_problem("mix", "S2", 16.0, 0)
    place = decisions.place_file(4, 8, 0)
    weeks = [prepare(decisions.week_scenario("fifo"), Path(), case) for case in range(2)]
    found = {
        "week": of_arrays(*(a for week in weeks for a in (week.table.submit_s, week.table.config_time_s))),
        "placement": of_arrays([j.due_s for j in place.jobs], [j.times_s["T4"] for j in place.jobs]),
        "market": of_arrays(market.pe_count, market.budgets, market.rate),
        "mapping": of_arrays(mapping.latency, mapping.bandwidth),
        "slices": of_arrays([t.power_w for t in decisions.slice_file(5, 0).tenants]),
        "mig": of_arrays(decisions.mig_problem(1, 5, 0).weights, decisions.mig_problem(1, 5, 0).rates),
        "demand": of_arrays(np.nan_to_num(decisions._demand_cases(True)[0].problem.gpus)),  # noqa: FBT003
    }
    assert found == PINNED


PINNED = {
    "placement": "910ff6a763b3", "market": "a00a4f7b7c4f", "mapping": "e8115f4ceb61", "slices": "004ad9ba5039",
    "mig": "79cadd5f77cc", "demand": "023de8cf20db", "week": "8ad0d8552646",
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["market", "slices", "mig"])
def test_scores_are_the_same_again_and_no_better_than_a_bound(name):
    first, again = (Bench(SUITES, quick=True).run([name]) for _ in range(2))
    scores = [[(s.name, s.score, s.worst, s.evaluations) for s in r.suites[0].solvers] for r in (first, again)]
    assert scores[0] == scores[1]
    if name != "market":  # against a baseline, not a bound
        assert all(s.score is None or s.score >= 1 - 1e-9 for s in first.suites[0].solvers)


def test_no_division_beats_the_bound_on_system_fairness():
    rng = np.random.default_rng(0)
    file = decisions.slice_file(3, 1)
    powers = np.array([tenant.power_w for tenant in file.tenants])
    bound = decisions._slice_bound(file)
    for _ in range(500):
        time = rng.dirichlet(np.ones(3))
        energy = time * powers
        assert min(time.min() / time.max(), energy.min() / energy.max()) <= bound + 1e-12
    even = powers**-0.5  # reaches it
    assert min(even.min() / even.max(), (even * powers).min() / (even * powers).max()) == pytest.approx(bound)


def test_bidding_serves_everybody():
    given = Market.make([4, 4], [1, 1], [[1, 1], [1, 1]], [[0.9, 0.9], [0.9, 0.9]])
    outcome = decisions._divided(decisions._bids, given, 0)
    assert outcome.value == pytest.approx(float(given.total(given.entitlement())[0]))


@pytest.mark.slow
def test_the_command(run, tmp_path):
    record, plot = tmp_path / "bench.json", tmp_path / "bench.svg"
    done = run("bench", "--quick", "--suite", "slices", "--suite", "market", "--out", record, "--plot", plot, "--json")
    assert done.code == 0, done.err
    assert BenchResult.model_validate(done.document) == BenchResult.model_validate_json(record.read_text())
    assert plot.read_text().startswith("<?xml")
    told = run("bench", "--quick", "--suite", "slices")
    assert "etf-energy" in told.out
    same = run("bench", "--quick", "--suite", "slices", "--suite", "market", "--check", record)
    assert (same.code, same.out) == (0, "")
    assert "nothing of ours" in same.err
    for options, part in (
        ((), "--quick"),
        (("--quick", "--seed", 1), "--seed"),
        (("--quick", "--solver", "ef"), "--solver"),
    ):
        refused = run("bench", *options, "--suite", "slices", "--check", record)
        assert (refused.code, len(refused.lines)) == (2, 1)
        assert part in refused.err
    other = run("bench", "--quick", "--suite", "mig", "--check", record)
    assert (other.code, len(other.lines)) == (2, 1)
    assert "expected one of the recorded suites: market, slices" in other.err
    document = json.loads(record.read_text())
    for solver in document["suites"][0]["solvers"]:
        if solver["name"] == "fisher":
            solver["score"] /= 2
    record.write_text(json.dumps(document))
    got_worse = run("bench", "--quick", "--suite", "market", "--check", record)
    assert got_worse.code == 1
    assert "fisher" in got_worse.err
    assert "entitlement" not in got_worse.err


def test_list(run):
    listed = run("bench", "--list", "--json").document["suites"]
    assert [suite["suite"] for suite in listed] == [suite.name for suite in SUITES]
    assert "nevergrad" in run("bench", "--list").out
    few = run("bench", "--list", "--suite", "market", "--suite", "mig", "--json").document["suites"]
    assert [suite["suite"] for suite in few] == ["market", "mig"]


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--suite", "placing"), "(did you mean placement?)"),
        (("--solver", "nobodyy"), "field '--solver': got 'nobodyy', expected one of auto, "),
        (("--out", "/no/such/folder/x.json"), "expected a file in an existing folder"),
        (("--check", "/no/such.json"), "/no/such.json"),
        (("--plot", "x.jpg"), "expected a file ending in"),
    ],
)
def test_errors_are_one_line(run, arguments, part):
    done = run("bench", "--quick", *arguments)
    assert (done.code, done.out) == (2, "")
    assert len(done.lines) == 1
    assert part in done.err
