"""``commonwatt study`` as an operator types it."""

import re

import pytest
import yaml

from commonwatt.simulation.runner import run_each
from tests.cli.console import run
from tests.studies.made import write_log

pytestmark = pytest.mark.usefixtures("one_period")
FEW = ("--weeks", 1, "--jobs", 1)


@pytest.fixture
def one_period(tmp_path):
    write_log(tmp_path, jobs=12, days=0.4)


def study(folder, *options):
    return run("study", folder / "jobs.txt", "--nodes", folder / "nodes.txt", *FEW, *options)


@pytest.mark.slow
def test_from_sacct_and_scontrol_to_a_report_in_one_command(tmp_path):
    out = tmp_path / "out"
    done = study(tmp_path, "--out", out, "--json", "--plot", tmp_path / "waterfall.svg")
    assert done.code == 0, done.err
    document = done.document
    assert {"version", "seed", "input_digest", "waterfall", "conservative_saving_pct", "assumptions"} <= document.keys()
    assert document["conservative_saving_interval"] is None
    assert {"step", "energy_kwh", "cost", "saved_pct", "alone_pct", "assumes"} <= document["waterfall"][1].keys()
    assert sorted(path.name for path in out.iterdir()) == ["report.html", "result.json", "rows", "study.yaml"]
    assert (tmp_path / "waterfall.svg").read_text().startswith("<?xml")
    again = run("study", out / "study.yaml", "--out", out, "--jobs", 1, "--json")
    assert again.document == document
    assert "runs:" not in again.err  # nothing was left to run
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "What this rests on" in page
    assert len(page) < 3_000_000


@pytest.mark.slow
def test_an_interrupted_study_keeps_what_is_done_and_says_so(tmp_path, monkeypatch):
    def interrupted(prepared, **options):
        yield from (pair for pair, _ in zip(run_each(prepared, **options), range(2), strict=False))
        raise KeyboardInterrupt

    monkeypatch.setattr("commonwatt.studies.run.run_each", interrupted)
    done = study(tmp_path, "--out", tmp_path / "out")
    assert done.code == 130
    assert re.search(r"^stopped after 2 of \d+ runs; run the same command to resume from .*out$", done.err, re.M)
    assert len(list((tmp_path / "out" / "rows").iterdir())) == 2
    assert "Not all runs are done" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_people_get_the_headline_first(tmp_path):
    (tmp_path / "study.yaml").write_text(
        study(tmp_path, "--draft").out + "steps: [planning]\nalternatives: []\n", encoding="utf-8"
    )
    done = run("study", tmp_path / "study.yaml", "--jobs", 1)
    assert done.code == 0, done.err
    first, second = done.out.splitlines()[:2]
    assert re.match(r"12 jobs of 3 tenants on 3 nodes with 12 GPUs \(T4, V100\); window", first)
    assert "No interval" in second
    assert re.search(r"^commonwatt +\d", done.out, re.MULTILINE)
    assert max(map(len, done.out.splitlines())) <= 200


def test_the_study_a_folder_has_is_not_replaced_unasked(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    draft = study(tmp_path, "--draft").out
    (out / "study.yaml").write_text(draft.replace("name: jobs", "name: mine"), encoding="utf-8")
    done = study(tmp_path, "--out", out)
    assert done.code == 2
    assert "got 'another study than" in done.err
    assert "--overwrite" in done.err
    assert "name: mine" in (out / "study.yaml").read_text(encoding="utf-8")


def test_a_node_with_two_gpu_types_and_one_that_is_drained(tmp_path):
    nodes = tmp_path / "nodes.txt"
    mixed = "NodeName=mix1 State=IDLE+DRAIN Gres=gpu:v100:2(S:0-1),gpu:t4:2(S:0-1)\n"
    nodes.write_text(nodes.read_text(encoding="utf-8") + "\n" + mixed, encoding="utf-8")
    done = study(tmp_path, "--draft")
    assert done.code == 0, done.err
    draft = yaml.safe_load(done.out)
    parts = [node for node in draft["nodes"] if node.get("host") == "mix1"]
    assert [node["gpus"] for node in parts] == [2, 2]
    assert any("mix1 (IDLE+DRAIN)" in text for text in draft["assumed"])


@pytest.mark.parametrize("option", ["--days", "--price", "--pue"])
@pytest.mark.parametrize("value", ["nan", "inf"])
def test_numbers_are_finite(tmp_path, option, value):
    done = study(tmp_path, option, value, "--draft")
    assert done.code == 2
    assert "is not a finite number" in done.err


def test_a_draft_is_a_study_file(tmp_path):
    draft = yaml.safe_load(study(tmp_path, "--draft", "--price", 0.3, "--currency", "CHF", "--seeds", 2).out)
    assert draft["electricity"]["price_per_kwh"] == 0.3
    assert draft["electricity"]["currency"] == "CHF"
    assert draft["seeds"] == 2
    assert draft["workload"]["source"] == "slurm"
    assert [node["gpu_type"] for node in draft["nodes"]] == ["T4", "V100"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["jobs.txt"], "--nodes"),
        (["nowhere.txt", "--nodes", "nodes.txt"], "nowhere.txt"),
        (["nodes.txt", "--nodes", "nodes.txt"], "nodes.txt: field 'LOG': got 'a list of nodes'"),
        (["nodes.txt", "--nodes", "jobs.txt"], "nodes.txt: field 'LOG': got 'a list of nodes'"),
        (["jobs.txt", "--nodes", "jobs.txt"], "jobs.txt: field '--nodes': got 'a job log (slurm)'"),
        (["latin.txt", "--nodes", "nodes.txt"], "latin.txt: field 'line 2': got 'byte 0xe9 at position"),
        (["jobs.txt", "--nodes", "latin.txt"], "latin.txt: field 'line 2': got 'byte 0xe9 at position"),
        (
            ["jobs.txt", "--nodes", "nodes.txt", "--begin", "2026-09-07T01:00", "--days", "0.0001"],
            "jobs.txt: field 'workload.days'",
        ),
        (["jobs.txt", "--nodes", "nodes.txt", "--begin", "2031-01-01"], "jobs.txt: field 'workload.begin'"),
        (["jobs.txt", "--nodes", "nodes.txt", "--out", "taken"], "not precious.txt"),
        (["jobs.txt", "--nodes", "nodes.txt", "--out", "jobs.txt"], "--out"),
        (["jobs.txt", "--nodes", "nodes.txt", "--knowledge", "all"], "--knowledge"),
        (["andreas.yaml"], "a workload from a log"),
        (["half.yaml"], "nodes"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    latin = (tmp_path / "jobs.txt").read_text(encoding="utf-8").replace("team-", "t\xe9am-")
    (tmp_path / "latin.txt").write_text(latin, encoding="latin-1")
    (tmp_path / "taken" / "precious.txt").touch()
    (tmp_path / "andreas.yaml").write_text("workload: {source: andreas}\nnodes: []\npolicies: [{solver: easy}]\n")
    (tmp_path / "half.yaml").write_text("workload: {source: slurm, path: jobs.txt}\n")
    done = run("study", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_simulate_sends_a_study_to_study(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("steps: [planning]\nworkload: {source: week}\nnodes: []\n")
    assert "commonwatt study" in run("simulate", path).err
