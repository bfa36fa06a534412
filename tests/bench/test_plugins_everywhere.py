"""A plugin's solver in scenarios and a live controller; what it raises or answers wrongly is its own failure."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import yaml

import commonwatt
from commonwatt.bench.decisions import SUITES
from commonwatt.bench.suite import Bench
from commonwatt.control.events import EventKind
from commonwatt.control.policy import FALLBACK, Policy
from commonwatt.data.files import validate
from commonwatt.devices.driver import plugin_trouble, sharing_policy
from commonwatt.model import plugins
from commonwatt.model.errors import InputError, PluginError
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.policies import SOLVER_NAMES, PolicySpec
from commonwatt.model.scenario import Scenario
from commonwatt.model.study_file import StudyFile
from commonwatt.placement import PlacementProblem, Schedule
from commonwatt.timeslicing import FairScheduler, QuantumProblem
from tests.bench.test_plugins import write_plugin
from tests.cli.console import NODES, scenario, write
from tests.control.worlds import cluster_of, random_jobs, simulate, trace
from tests.docs.pages import ROOT
from tests.placement.made import crowded_problem

CODE = """
import dataclasses
import sys
import numpy as np
from commonwatt.optimize import SearchResult
from commonwatt.placement import Schedule, make_solver, objective

FAILS = []


class Fifo:  # ours, by another name
    def solve(self, problem, rng, keep_going=None):
        found = make_solver("fifo").solve(problem, rng)
        return dataclasses.replace(found, cost=np.float64(found.cost), evaluations=np.int64(1))


class Moody(Fifo):
    def solve(self, problem, rng, keep_going=None):
        if FAILS:
            raise FAILS[0]
        return super().solve(problem, rng)


class Raises(Fifo):
    def solve(self, problem, rng, keep_going=None):
        raise ValueError("not\\ntoday")


class Exits(Fifo):
    def solve(self, problem, rng, keep_going=None):
        sys.exit(0)


class Own(BaseException):
    pass


class Based(Fifo):
    def solve(self, problem, rng, keep_going=None):
        raise Own("mine")


class Changes(Fifo):
    def solve(self, problem, rng, keep_going=None):
        found = super().solve(problem, rng)
        problem.due_s[:] = 0.0
        return found


class Property(Fifo):
    @property
    def plans(self):
        raise OSError("no plans")


class Generates(Fifo):
    def solve(self, problem, rng, keep_going=None):
        yield 1


class Other(Fifo):
    def solve(self, problem, rng, keep_going=None):
        found = super().solve(problem, rng)
        return dataclasses.replace(found, best=Schedule(found.best.choice[:-1], found.best.nodes))


class Floats(Fifo):
    def solve(self, problem, rng, keep_going=None):
        found = super().solve(problem, rng)
        return dataclasses.replace(found, best=Schedule(found.best.choice.astype(float), found.best.nodes))


class Nothing(Fifo):
    def solve(self, problem, rng, keep_going=None):
        return None


class Overfull(Fifo):
    def solve(self, problem, rng, keep_going=None):
        found = Schedule.empty(problem)
        found.choice[:] = problem.start[:-1]
        found.nodes[:] = 0
        return SearchResult(found, 0.0)


class Same:
    def guarantee(self, problem):
        return np.zeros(len(problem.weights), dtype=np.int64)

    def slices(self, problem):
        return (problem.quantum // len(problem.weights) for _ in problem.weights)


def same(phi):
    return Same()


class Even:
    def guarantee(self, problem):
        return np.full(len(problem.weights), problem.quantum // len(problem.weights))

    def slices(self, problem):
        if FAILS:
            raise FAILS[0]
        found = self.guarantee(problem)
        found[0] += problem.quantum - found.sum()
        return found


def even(phi):
    return Even()


class Nowhere:
    def __init__(self, budget):
        pass

    def solve(self, problem, rng, keep_going=None):
        from commonwatt.mapping import Mapping

        return SearchResult(Mapping(np.full(len(problem), 99), np.zeros(len(problem))), 0.0)


def forecaster(look_back, horizon):
    raise AssertionError
"""
WRONG = {
    "raises": "failed .*ValueError: not today", "exits": "failed .*SystemExit: 0", "based": "failed .*Own: mine",
    "changes": "changed its problem .*problem.due_s is not as it was given",
    "generates": "gave no valid answer .*expected a SearchResult, got generator",
    "other": "gave no valid answer .*expected whole numbers for", "floats": "gave no valid answer .*whole numbers",
    "nothing": "gave no valid answer .*expected a SearchResult, got NoneType",
    "overfull": "gave no valid answer .*SolverError",
}  # fmt: skip


TENANTS = (("a", "resnet18"), ("b", "resnet50"))


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, with a distribution of solvers."""
    folder = tmp_path / "site"
    wrong = "Moody Raises Exits Based Changes Generates Other Floats Nothing Overfull"
    names = {name.lower(): name for name in wrong.split()}
    solvers = {"my-fifo": "Fifo", "property": "Property", "las": "Fifo", "best": "Fifo", **names}
    write_plugin(
        folder,
        "many_solvers",
        {
            "solvers": solvers,
            "schedulers": {"same": "same", "even": "even"},
            "mappers": {"nowhere": "Nowhere"},
            "forecasters": {"oracle": "forecaster"},
        },
        CODE,
    )
    monkeypatch.syspath_prepend(folder)
    plugins._installed.cache_clear()
    yield folder
    plugins._installed.cache_clear()
    sys.modules.pop("many_solvers", None)


def test_names_in_files(site):
    def loaded(name: object) -> str:
        return validate(scenario(policies=[{"solver": name}]), Scenario, "s.yaml").policies[0].solver

    assert loaded("my-fifo") == "my-fifo"
    with pytest.raises(InputError) as refused:
        loaded("my-fifa")
    assert str(refused.value).startswith(
        "s.yaml: field 'policies.0.solver': got 'my-fifa', expected one of lookahead, "
    )
    assert str(refused.value).endswith("(did you mean my-fifo?)")
    assert loaded("las") == "las"
    assert Policy.of(PolicySpec(solver="las")).by_service  # ours, whoever has that name
    with pytest.raises(InputError, match=r"field 'policies.0.solver': got '7'"):
        loaded(7)
    why = {plugin.name: said for plugin, said in plugins.refused("solvers").items()}
    assert why == {"las": "commonwatt has one of that name", "best": "commonwatt has one of that name"}


def test_names_that_are_kept_for_ours_are_all_known():
    assert set(SOLVER_NAMES) | {"best"} >= set(plugins._TAKEN["solvers"])
    assert set(plugins._TAKEN["solvers"]) >= set(SOLVER_NAMES) - {
        "lookahead", "local-search", "random-greedy", "exact", "fifo", "edf", "priority", "srtf", "easy", "fair-share",
    }  # fmt: skip


def test_a_name_that_two_have_is_refused_in_files(site):
    write_plugin(site, "second_solvers", {"solvers": {"my-fifo": "Fifo"}}, CODE)
    plugins._installed.cache_clear()
    with pytest.raises(InputError, match=r"s.yaml: .*got 'my-fifo', expected another name: two distributions"):
        validate(scenario(policies=[{"solver": "my-fifo"}]), Scenario, "s.yaml")


@pytest.mark.slow
def test_a_simulation_under_a_plugin_is_one_under_what_it_does(site):
    table = random_jobs(30, 1)
    assert trace(simulate(cluster_of(), table, "my-fifo")) == trace(simulate(cluster_of(), table, "fifo"))


@pytest.mark.long
def test_the_command(site, run, tmp_path):
    file = write(tmp_path / "s.yaml", scenario(policies=[{"solver": "fifo"}, {"solver": "my-fifo"}]))
    done = run("simulate", file, "--json")
    assert done.code == 0, done.err
    ours, theirs = done.document["policies"]
    assert theirs["policy"] == "my-fifo"
    assert theirs["total_cost"] == ours["total_cost"]
    broken = write(tmp_path / "b.yaml", scenario(policies=[{"solver": "raises"}]))
    for more in ((), ("--jobs", 2, "--seeds", 2)):
        done = run("simulate", broken, "--json", *more)
        assert (done.code, done.out) == (2, "")
        assert "error: plugin raises failed (many_solvers 1.0, entry point raises" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_whatever_goes_wrong_is_the_plugins_failure(site, name):
    problem = crowded_problem(nodes=2, jobs=6, seed=3)
    before = problem.due_s.copy()
    with pytest.raises(PluginError, match=f"plugin {name} {WRONG[name]}") as failed:
        Policy.of(PolicySpec(solver=name)).decide(problem, np.random.default_rng(0))
    assert "many_solvers 1.0, entry point" in str(failed.value)
    assert (problem.due_s == before).all()  # it had a copy


def test_a_property_that_raises_is_told_when_it_is_made(site):
    with pytest.raises(PluginError, match=r"plugin property .*OSError: no plans"):
        Policy.of(PolicySpec(solver="property"))


def test_ctrl_c_in_a_plugin_is_the_users(site):
    policy = Policy.of(PolicySpec(solver="moody"), live=True)
    sys.modules["many_solvers"].FAILS[:] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        policy.decide(crowded_problem(nodes=2, jobs=6, seed=3), np.random.default_rng(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_live_another_solver_decides_meanwhile(site, name):
    problem = crowded_problem(nodes=2, jobs=6, seed=3)
    found = Policy.of(PolicySpec(solver=name), live=True).decide(problem, np.random.default_rng(0))
    expected = Policy.of(PolicySpec(solver=FALLBACK)).decide(problem, np.random.default_rng(0))
    assert (found.choice == expected.choice).all()


def test_a_failure_is_logged_once_and_so_is_its_end(site, caplog):
    from commonwatt.control.events import EventLog

    problem, log = crowded_problem(nodes=2, jobs=6, seed=3), EventLog()
    policy = Policy.of(PolicySpec(solver="moody"), live=True)
    fails = sys.modules["many_solvers"].FAILS
    for failure in ([], [ValueError("a")], [ValueError("a")], [ValueError("b")], [], []):
        fails[:] = failure
        policy.decide(replace(problem, now_s=problem.now_s + 1), np.random.default_rng(0), log=log)
    events = log.since(0)
    assert [event.kind for event in events] == [
        EventKind.SOLVER_FAILED,
        EventKind.SOLVER_FAILED,
        EventKind.SOLVER_WORKS,
    ]
    assert events[0].text.startswith("plugin moody failed (many_solvers 1.0, ")
    assert events[0].text.endswith("ValueError: a; fifo decides until it works")
    assert events[2].text == "moody decides again"
    assert [record.name for record in caplog.records] == ["commonwatt.policy"] * 3


def test_a_guarantee_not_to_stop_jobs_holds_for_plugins(site):
    """A schedule that postpones everything stops what runs, which a locked problem does not allow."""
    from commonwatt.placement.guarantees import validated_schedule

    runs = {"nodes": ["a"], "gpus": 1, "remaining_s": 60.0}
    problem = PlacementProblem.of(PlaceFile.model_validate({
        "nodes": [{"name": "a", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 100}],
        "jobs": [{"name": "j", "tardiness_weight": 1.0, "times_s": {"V100": [60.0]}, "current": runs}],
    }))  # fmt: skip
    problem = replace(problem, locked=True)
    with pytest.raises(Exception, match="a running job was stopped"):
        validated_schedule(problem, Schedule.empty(problem))
    assert isinstance(validated_schedule(replace(problem, locked=False), Schedule.empty(problem)), Schedule)


@pytest.mark.long
def test_bench_scores_plugins_on_weeks(site):
    (suite,) = Bench(SUITES, quick=True).run(["week"], ["my-fifo", "fifo"]).suites
    scores = {solver.name: solver.score for solver in suite.solvers}
    assert scores["my-fifo"] == pytest.approx(scores["fifo"])


def test_a_lazy_answer_is_none(site, run, tmp_path):
    done = run("timeslice", "plan", ROOT / "examples" / "quantum.yaml", "--policy", "same", "--json")
    assert (done.code, done.out) == (2, "")
    assert "plugin same gave no valid answer" in done.err
    assert "expected values, got a generator" in done.err


@pytest.mark.slow
def test_a_live_controller_goes_on(site, tmp_path):
    """Two jobs run while the plugin raises; then it works again. The supervisor never restarts for it."""
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    from commonwatt.controlplane.wiring import open_live
    from commonwatt.model.job_file import JobFile
    from tests.controlplane.chaos import config_in

    live = open_live(config_in(tmp_path, engine="simulated", policies=[{"solver": "moody"}], tenants=[{"name": "a"}]))
    fails = sys.modules["many_solvers"].FAILS
    fails[:] = [SystemExit(3)]

    def completes(name: str) -> str:
        file = JobFile.model_validate({"name": name, "command": ["true"], "times_s": {"V100": [0.1]}})
        row, _ = live.store.submit("a", file, time.time())
        live.supervisor.wake()
        end_s = time.monotonic() + 120
        while live.store.job(row.id).status not in ("completed", "failed") and time.monotonic() < end_s:
            time.sleep(0.02)
        return live.store.job(row.id).status

    try:
        live.start()
        assert completes("one") == "completed"
        assert live.supervisor.snapshot().healthy
        fails.clear()
        assert completes("two") == "completed"
        kinds = [event.kind for event in live.store.events(limit=1000)]
        assert kinds.count("solver-failed") == 1
        assert kinds.count("solver-works") == 1
    finally:
        live.close()


def test_serve_refuses_a_plugin_that_cannot_be_loaded(site, tmp_path):
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    from commonwatt.controlplane.wiring import open_live
    from tests.controlplane.chaos import config_in

    with pytest.raises(PluginError, match=r"plugin property failed"):
        open_live(config_in(tmp_path, engine="simulated", policies=[{"solver": "property"}]))
    with pytest.raises(InputError, match=r"live.yaml: field 'policies.0.solver': got 'nobody'"):
        open_live(config_in(tmp_path, engine="simulated", policies=[{"solver": "nobody"}]))


def test_a_study_takes_plugins(site):
    document = {"workload": {"source": "week"}, "nodes": NODES, "ours": {"solver": "my-fifo", "name": "theirs"}}
    assert validate(document, StudyFile).ours.solver == "my-fifo"
    with pytest.raises(InputError, match=r"field 'ours.solver': got 'my-fifi'.*did you mean my-fifo"):
        validate(document | {"ours": {"solver": "my-fifi"}}, StudyFile)


@pytest.mark.slow
def test_a_device_is_shared_by_a_plugin(site, run, tmp_path):
    tenants = [{"name": name, "models": [{"name": "m", "profile": f"tx2-{model}"}]} for name, model in TENANTS]
    document = {"device": {"kind": "simulated"}, "quantum_s": 0.2, "duration_s": 20, "tenants": tenants}
    file = tmp_path / "sharing.yaml"

    def shared(policy: str):
        file.write_text(yaml.safe_dump(document | {"policy": policy}))
        return run("timeslice", "run", file, "--json")

    sys.modules.pop("many_solvers", None)
    done = shared("even")
    assert done.code == 0, done.err
    assert done.document["policy"] == "even"
    assert done.document["time_fairness"] == pytest.approx(1, abs=0.02)  # all weights are equal
    sys.modules["many_solvers"].FAILS[:] = [ValueError("no")]
    done = shared("even")
    assert (done.code, done.out) == (2, "")  # what another policy has divided is no result of this one
    assert "plugin even failed (many_solvers 1.0" in done.err
    assert "did you mean even?" in shared("evem").err


def test_a_device_that_is_served_goes_on(site, caplog):
    problem = QuantumProblem.make(1000, [1.0, 3.0], [10.0, 20.0])
    policy = sharing_policy("even", 0.5)
    assert policy.slices(problem).tolist() == [500, 500]
    sys.modules["many_solvers"].FAILS[:] = [SystemExit(1)]
    for _ in range(2):
        assert (policy.slices(problem) == sharing_policy("etf", 0.5).slices(problem)).all()
    assert plugin_trouble(FairScheduler(policy, 1000)).startswith("plugin even failed (many_solvers 1.0")
    assert [record.message for record in caplog.records] == ["a plugin failed, and etf divides in its place"]
    assert plugin_trouble(FairScheduler(sharing_policy("etf", 0.5), 1000)) is None


def test_an_invalid_mapping_is_the_plugins_failure(site, run):
    done = run("map", ROOT / "examples" / "map.yaml", "--algorithm", "nowhere", "--json")
    assert (done.code, done.out) == (2, "")
    assert "plugin nowhere gave no valid answer" in done.err
    assert "no mapping of this problem" in done.err
    with pytest.raises(PluginError, match="plugin nowhere gave no valid answer"):
        commonwatt.map_layers(ROOT / "examples" / "map.yaml", algorithm="nowhere")
    with pytest.raises(PluginError, match="plugin overfull gave no valid answer"):
        commonwatt.place(ROOT / "examples" / "place.yaml", solver="overfull")


def test_no_file_can_hold_what_a_plugin_has_learned(site, run, tmp_path):
    done = run("forecast", "fit", tmp_path / "demand.csv", "--model", "oracle", "--out", tmp_path / "x.safetensors")
    assert (done.code, done.out) == (2, "")
    assert (
        "field '--model': got 'oracle', expected a model of ours: no file can hold what a plugin has learned"
        in done.err
    )
