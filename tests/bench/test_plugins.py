"""Plugins: found by metadata alone, loaded when used, blamed by name when broken; the template works when installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import commonwatt
from commonwatt.bench.suite import worse
from commonwatt.model import plugins
from commonwatt.model.errors import InputError, PluginError
from commonwatt.model.suite_results import BenchResult
from tests.docs.pages import ROOT

CODE = """
import numpy as np
from pydantic import TypeAdapter
from commonwatt.forecasting import make_predictor
from commonwatt.mapping import ALGORITHMS
from commonwatt.optimize import SearchResult
from commonwatt.placement import Schedule, objective
from commonwatt.timeslicing import make_policy


class Nobody:
    plans = leaves_room = False

    def solve(self, problem, rng, keep_going=None):
        schedule = Schedule.empty(problem)
        return SearchResult(schedule, objective(problem, schedule).total)


class Overfull(Nobody):
    def solve(self, problem, rng, keep_going=None):
        found = super().solve(problem, rng).best
        found.choice[:] = 0
        found.nodes[:] = 0
        return SearchResult(found, 0.0)


class Raising(Nobody):
    def solve(self, problem, rng, keep_going=None):
        raise ValueError("not\\ntoday")


class Wrong(Nobody):
    def solve(self, problem, rng, keep_going=None):
        TypeAdapter(dict[str, int]).validate_python({"gpus": "many", **{f"job-{n}": [n] for n in range(4)}})


class Unfinished:
    pass


def halves(market):
    return market.entitlement() / 2


def too_many(market):
    return market.entitlement() * 2


def mapper(budget):
    return ALGORITHMS["heft"](budget)


def scheduler(phi):
    return make_policy("tf", phi)


class Greedy:
    name = "greedy"

    def guarantee(self, problem):
        return np.zeros(len(problem), dtype=np.int64)

    def slices(self, problem):
        return problem.demands


def greedy(phi):
    return Greedy()


def forecaster(look_back, horizon):
    return make_predictor("last-value", look_back, horizon)
"""


def write_plugin(folder: Path, name: str, entries: dict[str, dict[str, str]], code: str = CODE) -> None:
    """Put a distribution into *folder* as pip leaves it: a module, and metadata with entry points by group."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.py").write_text(code)
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = []
    for group, points in entries.items():
        lines += [f"[commonwatt.{group}]", *(f"{key} = {name}:{target}" for key, target in points.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path, with a distribution of plugins of every kind, good and bad."""
    folder = tmp_path / "site"
    entries = {
        "solvers": {
            "nobody": "Nobody", "overfull": "Overfull", "raising": "Raising", "unfinished": "Unfinished",
            "wrong": "Wrong", "gone": "Missing", "edf": "Nobody", "Bad_Name": "Nobody",
        },
        "partitioners": {"halves": "halves", "too-many": "too_many"},
        "mappers": {"plain": "mapper", "random-olb": "mapper"},
        "schedulers": {"plain-tf": "scheduler", "greedy": "greedy"},
        "forecasters": {"plain-last": "forecaster", "gru": "forecaster"},
    }  # fmt: skip
    write_plugin(folder, "many_plugins", entries)
    write_plugin(folder, "second_plugins", {"solvers": {"twice": "Nobody"}})
    write_plugin(folder, "third_plugins", {"solvers": {"twice": "Nobody"}})
    write_plugin(folder, "broken_plugins", {"solvers": {"broken": "X"}}, "raise RuntimeError('no\\nluck')\n")
    monkeypatch.syspath_prepend(folder)
    plugins._installed.cache_clear()
    yield folder
    plugins._installed.cache_clear()
    for name in ("many_plugins", "second_plugins", "third_plugins", "broken_plugins"):
        sys.modules.pop(name, None)


EXAMPLES = ROOT / "examples"
DEMAND = "time,gpus\n" + "".join(f"{600 * i},{20 + i % 7}\n" for i in range(400))


def test_names_are_listed_without_importing(site):
    names = plugins.names_of("solvers", ("edf",))
    assert names == ("broken", "gone", "nobody", "overfull", "raising", "unfinished", "wrong")
    assert "many_plugins" not in sys.modules
    why = {plugin.name: said for plugin, said in plugins.refused("solvers", ("edf",)).items()}
    assert set(why) == {"edf", "Bad_Name", "twice"}
    assert why["twice"] == "two distributions have that name"


@pytest.mark.parametrize("name", ["Bad_Name", "twice"])
def test_names_that_cannot_be_used(site, name):
    with pytest.raises(InputError, match=f"got '{name}', expected another name: .*_plugins 1.0, entry point {name}"):
        plugins.one("solvers", name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "key", "name"),
    [
        (("place", EXAMPLES / "place.yaml", "--solver", "nobody"), "solver", "nobody"),
        (("partition", EXAMPLES / "partition.yaml", "--mechanism", "halves"), "mechanism", "halves"),
        (("map", EXAMPLES / "map.yaml", "--algorithm", "plain"), "algorithm", "plain"),
        (("timeslice", "plan", EXAMPLES / "quantum.yaml", "--policy", "plain-tf"), "policy", "plain-tf"),
    ],
)
def test_every_group_has_its_option(site, run, arguments, key, name):
    done = run(*arguments, "--json")
    assert done.code == 0, done.err
    assert done.document[key] == name


@pytest.mark.slow
def test_forecasters(site, run, tmp_path):
    series = tmp_path / "demand.csv"
    series.write_text(DEMAND)
    common = ("forecast", "evaluate", series, "--test-from", 200_000, "--total-gpus", 40, "--json")
    plain, ours = run(*common, "--model", "plain-last"), run(*common, "--model", "last-value")
    assert plain.code == 0, plain.err
    assert plain.document["model"] == "plain-last"
    assert plain.document["quantiles"] == ours.document["quantiles"]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("place", "place.yaml", "--solver", "broken"),
         ("plugin broken could not be loaded (broken_plugins 1.0, entry point broken = broken_plugins:X of",
          "commonwatt.solvers): RuntimeError: no luck")),
        (("place", "place.yaml", "--solver", "gone"), ("AttributeError", "many_plugins:Missing")),
        (("place", "place.yaml", "--solver", "unfinished"), ("could not be made", "it has no method solve")),
        (("place", "place.yaml", "--solver", "raising"), ("failed", "ValueError: not today")),
        (("place", "place.yaml", "--solver", "wrong"),
         ("failed", "ValidationError: gpus: Input should be a valid integer", ", got 'many'; job-0: ", "; and 2 more")),
        (("place", "place.yaml", "--solver", "overfull"), ("gave no valid answer", "SolverError: ")),
        (("place", "place.yaml", "--solver", "twice"), ("twice",)),
        (("partition", "partition.yaml", "--mechanism", "too-many"), ("gave no valid answer", "more PEs")),
        (("timeslice", "plan", "quantum.yaml", "--policy", "greedy"), ("gave no valid answer", "SolverError: ")),
    ],
)  # fmt: skip
def test_a_broken_plugin_is_one_line(site, run, arguments, parts):
    done = run(*(EXAMPLES / a if a.endswith(".yaml") else a for a in arguments), "--json")
    assert (done.code, done.out) == (2, "")
    assert len(done.lines) == 1
    assert all(part in done.err for part in parts), done.err


def test_the_problems_own_errors_are_not_blamed_on_a_plugin(site, run, tmp_path):
    bad = tmp_path / "place.yaml"
    bad.write_text((EXAMPLES / "place.yaml").read_text().replace("gpu_type: V100", "gpu_type: X9"))
    done = run("place", bad, "--solver", "nobody")
    assert done.code == 2
    assert "plugin" not in done.err


def test_help_lists_plugins_and_loads_none(site, run):
    done = run("place", "--help")
    assert "nobody" in done.out
    assert "broken" in done.out
    assert not {"many_plugins", "broken_plugins"} & set(sys.modules)


@pytest.mark.slow
def test_python_takes_plugins_too(site):
    assert commonwatt.place(EXAMPLES / "place.yaml", solver="nobody").solver == "nobody"
    assert commonwatt.timeslice(EXAMPLES / "quantum.yaml", policy="plain-tf").policy == "plain-tf"
    assert commonwatt.partition(EXAMPLES / "partition.yaml", mechanism="halves").mechanism == "halves"
    assert commonwatt.map_layers(EXAMPLES / "map.yaml", algorithm="plain").algorithm == "plain"
    with pytest.raises(PluginError, match=r"broken_plugins 1\.0"):
        commonwatt.place(EXAMPLES / "place.yaml", solver="broken")


@pytest.mark.slow
def test_bench_scores_plugins_and_says_which_are_broken(site, run):
    done = run("bench", "--quick", "--suite", "placement", "--json")
    assert done.code == 0, done.err
    (suite,) = done.document["suites"]
    solvers = {solver["name"]: solver for solver in suite["solvers"] if solver["kind"] == "plugin"}
    assert (solvers["nobody"]["state"], solvers["nobody"]["origin"]) == ("done", "many_plugins 1.0")
    assert solvers["nobody"]["score"] > 1
    for name in ("broken", "gone", "raising", "overfull", "unfinished"):
        assert solvers[name]["state"] == "failed"
        assert "_plugins 1.0" in solvers[name]["reason"]
    assert "two distributions" in solvers["twice"]["reason"]
    assert "commonwatt has one of that name" in solvers["edf"]["reason"]
    result = BenchResult.model_validate(done.document)
    assert worse(result, result) == []
    assert {s["name"] for s in suite["solvers"] if s["kind"] == "ours" and s["state"] == "done"} == {
        "local-search", "lookahead",
    }  # fmt: skip


def test_bench_refuses_the_names_that_commands_refuse(site, run):
    """Also names of ours that a suite does not run at all, or not with ``--quick``."""
    done = run("bench", "--list", "--quick", "--suite", "mapping", "--suite", "demand", "--json")
    refused = {suite["suite"]: [one["name"] for one in suite["refused"]] for suite in done.document["suites"]}
    assert refused == {"mapping": ["random-olb"], "demand": ["gru"]}


@pytest.mark.long
def test_the_template_works_when_it_is_installed(tmp_path):
    """The folder as it is, installed by pip without network, used by the commands, and its own tests."""
    if not find_spec("setuptools") or not find_spec("pip"):
        pytest.skip("setuptools or pip is not installed")
    source, target = tmp_path / "plugin", tmp_path / "site"
    above = "[tool.pytest.ini_options]\naddopts = '--strict-config'\nno-such-option = 1\n"  # as in a checkout
    (tmp_path / "pyproject.toml").write_text(above)
    shutil.copytree(EXAMPLES / "plugin", source, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    installed = subprocess.run(
        [*pip, "--target", target, source], capture_output=True, text=True, check=False, env=environment
    )
    assert installed.returncode == 0, installed.stderr
    environment["PYTHONPATH"] = os.pathsep.join([str(target), *filter(None, [os.environ.get("PYTHONPATH")])])

    def ran(*arguments: object) -> str:
        done = subprocess.run(
            [*map(str, arguments)], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    command = Path(sys.executable).with_name("commonwatt")
    assert '"solver": "shortest-first"' in ran(
        command, "place", EXAMPLES / "place.yaml", "--solver", "shortest-first", "--json"
    )
    page = source / "leaderboard.md"
    assert "shortest-first" in ran(command, "bench", "--quick", "--suite", "placement", "--page", page)
    assert "| `shortest-first` | plugin, commonwatt-shortest-first 0.1.0 |" in page.read_text()
    assert "3 passed" in ran(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", source / "tests")
