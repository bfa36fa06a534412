"""What somebody sees in the first minute: compiling told apart from solving, progress, and what Ctrl-C leaves."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import subprocess
import time
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from commonwatt.cli import output
from commonwatt.cli.output import compiling
from commonwatt.model.scenario import Scenario
from commonwatt.simulation import runner
from commonwatt.simulation.runner import RunsInterruptedError, run_seeds, workers_for
from commonwatt.simulation.workload import prepare
from tests.cli.console import SCRIPT, run, scenario, write

ROOT = Path(__file__).parents[2]


def fresh():
    """A function that Numba has not compiled."""

    @njit
    def total(values):
        found = 0.0
        for value in np.sort(values):
            found += value
        return found

    return total


@pytest.mark.long
def test_compiling_is_announced_once_and_is_no_work(capsys):
    total = fresh()
    began = time.perf_counter()
    with compiling("a sum") as watch:
        total(np.ones(3))
        took = watch.elapsed_s
    whole = time.perf_counter() - began
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "compiling a sum, once per machine"
    assert re.fullmatch(r"compiled in \d+\.\d s", said[1])
    assert len(said) == 2
    assert took >= 0 < watch.compile_s
    assert took + watch.compile_s <= whole  # compiling is in one of them, not in both
    with compiling("a sum") as again:
        total(np.ones(3))
    assert (capsys.readouterr().err, again.compiled, again.compile_s) == ("", False, 0.0)


@pytest.mark.long
def test_the_first_place_counts_no_compiling(tmp_path):
    """In a process of its own, with an empty cache."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [SCRIPT, "place", str(ROOT / "examples" / "place.yaml"), "--solver", "local-search", "--json"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "compiling solver local-search, once per machine\n" in first.stderr
    compile_s = float(re.search(r"compiled in ([\d.]+) s", first.stderr)[1])
    assert json.loads(first.stdout)["solve_s"] < compile_s
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "compil" not in second.stderr


@pytest.mark.long
@pytest.mark.slow
def test_planning_quanta_counts_no_compiling(tmp_path):
    """In a process of its own, with an empty cache."""
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command = [SCRIPT, "timeslice", "plan", str(ROOT / "examples" / "quantum.yaml"), "--json"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "compiling policy etf, once per machine\n" in first.stderr
    assert re.search(r"compiled in ([\d.]+) s", first.stderr)
    second = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "compil" not in second.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "line", "said"),
    [
        ("partition.divide", "partition examples/partition.yaml", "the market solver"),
        ("partition.mig", "partition mig examples/mig.yaml", "the market solver"),
        ("map.solve", "map examples/map.yaml --budget 200", "algorithm auto"),
        ("forecast.plan", "forecast plan demand.csv --model last-value", "forecaster last-value"),
    ],
)
def test_other_commands_announce_it_around_their_work(module, line, said, tmp_path, monkeypatch):
    """The work is done inside: it is when numba would compile."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    hours = "".join(f"2024-01-{1 + h // 24:02}T{h % 24:02}:00,{50 + h % 24}\n" for h in range(24 * 20))
    write(tmp_path / "demand.csv", f"time,gpus\n{hours}")
    named: list[str] = []

    @contextmanager
    def announced(what):
        named.append(what)
        with compiling(what) as watch:
            yield watch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(importlib.import_module(f"commonwatt.cli.{module}"), "compiling", announced)
    assert run(*line.split(), "--json").code == 0
    assert said in named


def test_progress_without_a_terminal_is_a_line_now_and_then(monkeypatch):
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.01)
    said: list[str] = []
    monkeypatch.setattr(output, "print_message", said.append)

    def until_said(begin: str) -> None:
        while not any(line.startswith(begin) for line in said):
            time.sleep(0.01)

    with output.progress_bar("runs", 2, 100.0) as bar:
        bar.at("fifo", 50.0)
        until_said("runs: 0 of 2 done, 25%")
        bar.done()
        bar.follow(lambda: [25.0])
        until_said("runs: 1 of 2 done, 62%")
        bar.follow(list)
        bar.done()
    assert re.fullmatch(r"runs: 0 of 2 done, \d+%, \d+ s", said[0])
    assert said[-1].startswith("runs: 2 of 2 done, 100%")
    percent = [int(re.search(r"(\d+)%", line)[1]) for line in said]
    assert all(a <= b for a, b in pairwise(percent))


def test_progress_says_day_jobs_rate_and_time_left(monkeypatch):
    monkeypatch.setattr(output, "LINE_EVERY_S", 0.01)
    said: list[str] = []
    monkeypatch.setattr(output, "print_message", said.append)
    submit_s = [0.0, 43_200.0, 86_400.0, 172_800.0]
    with output.progress_bar("runs", 2, submit_s[-1], output.pace_of(submit_s)) as bar:
        bar.at("fifo", 86_400.0)
        while not any("day 1.0" in line for line in said):
            time.sleep(0.01)
        bar.done()
        bar.done()
    form = r"runs: 0 of 2 done, 25%, \d+ s, day 1\.0 of 2\.0, 3 of 4 jobs, [\d.e+]+ days/s, \d+ s left"
    assert any(re.fullmatch(form, line) for line in said)
    assert said[-1] == re.match(r"runs: 2 of 2 done, 100%, \d+ s", said[-1])[0]


def test_what_is_quick_shows_no_progress(capsys, monkeypatch):
    monkeypatch.setattr(output, "LINE_EVERY_S", 3600.0)
    with output.progress_bar("runs", 1, 100.0) as bar:
        bar.done()
    assert capsys.readouterr().err == ""


@pytest.mark.long
def test_runs_in_other_processes_tell_how_far_they_are(monkeypatch):
    monkeypatch.chdir(ROOT)
    made = prepare(Scenario.model_validate(scenario()), Path(), 0)
    heard = []

    class Listener:
        def at(self, policy, time_s):
            raise AssertionError

        def follow(self, times_s):
            heard.append(times_s().tolist())

        def done(self):
            heard.append("done")

    results, records = run_seeds([made], jobs=2, listener=Listener())
    assert heard == [[0.0, 0.0], "done", "done"]
    alone, _ = run_seeds([made], jobs=1)
    assert [p.total_cost for p in results[0].policies] == [p.total_cost for p in alone[0].policies]
    assert [record.policy for record in records] == ["random-greedy", "fifo"]


@pytest.mark.parametrize(
    ("policies", "jobs_per_day", "jobs", "backend", "at_a_time"),
    [
        (["fifo", "lookahead"], 100, None, "loky", 1),
        (["fifo", "lookahead"], 100, 2, "loky", 2),  # as asked
        (["fifo", "lookahead"], 100, None, "ray", 2),
        (["fifo", "lookahead"], 2000, None, "loky", 2),  # many jobs
        (["fifo", "exact"], 100, None, "loky", 2),  # few jobs, each of which may take long
    ],
)
def test_short_runs_begin_no_processes_unless_asked_to(policies, jobs_per_day, jobs, backend, at_a_time, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    workload = {"source": "week", "days": 1, "jobs_per_day": jobs_per_day}
    nodes = [{"name": "p", "count": 12, "gpu_type": "P100", "gpus": 8, "idle_w": 150, "gpu_w": 250}]
    document = scenario(workload=workload, nodes=nodes, policies=[{"solver": solver} for solver in policies])
    made = prepare(Scenario.model_validate(document), Path(), 0)
    assert workers_for([made], jobs, backend, runs=2) == at_a_time


def interrupted_at(n: int, monkeypatch) -> None:
    """Ctrl-C when run *n* would begin."""
    run_one, begun = runner.run_policy, []

    def one(*arguments, **more):
        if len(begun) == n:
            raise KeyboardInterrupt
        begun.append(1)
        return run_one(*arguments, **more)

    monkeypatch.setattr(runner, "run_policy", one)


@pytest.mark.slow
def test_policies_that_ended_are_kept(tmp_path, monkeypatch):
    file = write(tmp_path / "s.yaml", scenario())
    interrupted_at(1, monkeypatch)
    done = run("simulate", file, "--out", tmp_path / "out", "--jobs", 1)
    assert done.code == 130
    assert (
        f"stopped after 1 of 2 policies (random-greedy); run the same command to resume from {tmp_path / 'out'}"
        in done.err
    )
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [p["policy"] for p in kept["policies"]] == ["random-greedy"]
    assert "random-greedy" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_the_same_command_goes_on_from_what_is_kept(seeds, tmp_path, monkeypatch):
    file = write(tmp_path / "s.yaml", scenario())
    command = ("simulate", file, "--jobs", 1, "--seeds", seeds)
    assert run(*command, "--out", tmp_path / "whole").code == 0
    with monkeypatch.context() as patched:
        interrupted_at(1, patched)
        first = run(*command, "--out", tmp_path / "out")
    assert (first.code, "run the same command to resume from " in first.err) == (130, True)
    assert len(list((tmp_path / "out" / "runs").iterdir())) == 1
    with monkeypatch.context() as patched:
        interrupted_at(2 * seeds - 1, patched)  # one run fewer than it has is enough
        again = run(*command, "--out", tmp_path / "out")
    assert again.code == 0, again.err
    assert f"1 of {2 * seeds} runs were kept in {tmp_path / 'out'}: going on from there" in again.err
    names = {path.name for path in (tmp_path / "whole").iterdir()}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names  # nothing is kept once all is done
    for name in names - {"report.html"}:  # which tells how long deciding took
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


@pytest.mark.slow
def test_what_another_command_has_kept_is_not_overwritten(tmp_path, monkeypatch):
    out, file = tmp_path / "out", write(tmp_path / "s.yaml", scenario())
    with monkeypatch.context() as patched:
        interrupted_at(1, patched)
        run("simulate", file, "--out", out, "--jobs", 1)
    done = run("simulate", file, "--out", out, "--jobs", 1, "--seed", 7)
    assert done.code == 2
    assert f"field '--out': got '{out}', expected a new or empty folder, the same command as before" in done.err
    assert run("simulate", file, "--out", out, "--jobs", 1, "--seed", 7, "--overwrite").code == 0
    assert not (out / "runs").exists()


@pytest.mark.slow
def test_a_kept_run_that_cannot_be_read_is_run_again(tmp_path, monkeypatch):
    out, file = tmp_path / "out", write(tmp_path / "s.yaml", scenario())
    with monkeypatch.context() as patched:
        interrupted_at(1, patched)
        run("simulate", file, "--out", out, "--jobs", 1)
    (kept,) = (out / "runs").iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    assert run("simulate", file, "--out", out, "--jobs", 1).code == 0
    assert len(json.loads((out / "result.json").read_text())["policies"]) == 2


def test_files_of_others_among_what_is_kept_stay(tmp_path):
    (tmp_path / "out" / "runs").mkdir(parents=True)
    (tmp_path / "out" / "runs" / "thesis.txt").write_text("years of work")
    done = run("simulate", write(tmp_path / "s.yaml", scenario()), "--out", tmp_path / "out", "--overwrite")
    assert done.code == 2
    assert "not runs/thesis.txt" in done.err


def test_nothing_is_written_when_nothing_ended(tmp_path, monkeypatch):
    file = write(tmp_path / "s.yaml", scenario())
    interrupted_at(0, monkeypatch)
    done = run("simulate", file, "--out", tmp_path / "out", "--jobs", 1)
    assert (done.code, (tmp_path / "out").exists()) == (130, False)
    assert "stopped before a run ended: nothing is kept" in done.err


@pytest.mark.parametrize(("at", "seeds", "policies"), [(3, 1, 2), (4, 2, 2), (1, 0, 0)])
def test_of_several_seeds_whole_ones_are_kept(at, seeds, policies, monkeypatch):
    made = [prepare(Scenario.model_validate(scenario()), Path(), seed) for seed in range(3)]
    interrupted_at(at, monkeypatch)
    with pytest.raises(RunsInterruptedError) as caught:
        run_seeds(made, jobs=1)
    assert [len(result.policies) for result in caught.value.results] == [2] * seeds
    assert len(caught.value.records) == policies


@pytest.mark.long
def test_ctrl_c_while_processes_work_keeps_what_is_done(tmp_path):
    document = scenario(
        workload={"source": "week", "days": 3, "jobs_per_day": 300, "profiles": "law"},
        nodes=[{"name": "v", "count": 12, "gpu_type": "V100", "gpus": 8, "idle_w": 150, "gpu_w": 250}],
        policies=[{"solver": "fifo"}, {"solver": "lookahead"}, {"solver": "lookahead", "name": "again"}],
    )
    file = write(tmp_path / "s.yaml", document)
    command = [SCRIPT, "simulate", str(file), "--out", str(tmp_path / "out"), "--jobs", "2"]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as ran:
        for line in ran.stderr:
            if re.match(r"runs: [12] of 3 done", line):
                os.killpg(ran.pid, signal.SIGINT)
                break
        said = ran.stderr.read()
    assert ran.returncode == 130, said
    assert "policies (fifo" in said
    kept = json.loads((tmp_path / "out" / "result.json").read_text())
    assert kept["policies"][0]["policy"] == "fifo"


def test_the_demo_is_small():
    from commonwatt.data.files import load_yaml

    demo, week = (load_yaml(ROOT / "examples" / name, Scenario) for name in ("demo.yaml", "demo-week.yaml"))
    assert (demo.workload.source, demo.workload.days) == ("week", 1)  # generated: no log is looked for
    assert week.workload.days == 7
    makefile = (ROOT / "Makefile").read_text()
    for target, name in (("demo", "demo.yaml"), ("demo-week", "demo-week.yaml")):
        assert re.search(rf"^{target}: .*\n\t.*simulate examples/{name} ", makefile, re.MULTILINE)
