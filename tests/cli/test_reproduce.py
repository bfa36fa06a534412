import os
import re
import shutil
from html import unescape
from pathlib import Path

import pytest

from commonwatt.model.results import ReproduceListResult, ReproduceResult
from commonwatt.model.suite_results import ReproduceAllResult
from commonwatt.reproduce import collection, registry
from commonwatt.reproduce.papers import andreas_sweep as sweep
from commonwatt.reproduce.registry import left_out
from commonwatt.reproduce.verdicts import legend

HEAVY = {"numba", "polars", "matplotlib", "plotly", "joblib", "pydantic", "numpy"}


def test_list(run):
    done = run("reproduce", "--json")
    assert (done.code, done.err) == (0, "")
    names = [topic.name for topic in ReproduceListResult.model_validate(done.document).topics]
    assert "andreas-table-3" in names
    told = run("reproduce").out
    assert all(name in told for name in names)


@pytest.mark.long
def test_a_table(installed, tmp_path):
    plot = tmp_path / "trace.png"
    done = installed("reproduce", "andreas-armida", "--json", "--seed", 1, "--plot", plot)
    assert done.code == 0, done.err
    assert done.lines[-1] == f"written: {plot}"  # a slow run shows its progress before
    result = ReproduceResult.model_validate(done.document)
    assert (result.name, result.seed, result.extent) == ("andreas-armida", 1, "default")
    assert {"quantity", "paper", "ours", "unit", "comparable", "note", "held_pct"} == set(done.document["rows"][0])
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_a_figure_in_words(run, monkeypatch):
    monkeypatch.setattr(sweep, "NODES", {"quick": (2,)})
    monkeypatch.setattr(sweep, "CANDIDATES", 20)
    done = run("reproduce", "andreas-scenario-2", "--quick", "--seeds", 2, "--jobs", 1)
    assert done.code == 0, done.err
    for part in ("not printed", "total cost, EUR", "random-greedy", "Note: ", "quick extent, 2 seeds", "30"):
        assert part in done.out


@pytest.mark.long
@pytest.mark.slow
def test_all(run, tmp_path, monkeypatch):
    few = tuple(topic for topic in registry.topics() if topic.name in ("etf-figure-3", "gsharp-figure-6"))
    monkeypatch.setattr(registry, "of_papers", lambda: few)
    out = tmp_path / "new" / "folder"
    done = run("reproduce", "all", "--quick", "--seeds", 1, "--jobs", 1, "--out", out, "--json")
    assert done.code == 0, done.err
    result = ReproduceAllResult.model_validate(done.document)
    assert result == ReproduceAllResult.model_validate_json((out / "result.json").read_text())
    assert [topic.state for topic in result.topics] == ["done", "done"]
    page = (out / "report.html").read_text()
    assert "The example of section 4.3" in page
    assert page.count("data:image/svg+xml") == 4
    (out / "result.json").rename(tmp_path / "kept.json")
    shutil.copytree(out / "figures", tmp_path / "figures")
    other = tmp_path / "other"
    from_record = run("reproduce", "all", "--from", tmp_path / "kept.json", "--out", other, "--json")
    assert from_record.code == 0, from_record.err
    assert ReproduceAllResult.model_validate(from_record.document) == result

    def still(text):  # the SVG of a figure has a date
        return re.sub(r"base64,[^\"]*", "", text)

    assert still((other / "report.html").read_text()) == still(page)
    assert sorted(path.name for path in other.iterdir()) == ["figures", "report.html"]  # nothing was run
    again = run("reproduce", "all", "--quick", "--seeds", 1, "--jobs", 1, "--out", out)
    assert "kept: 2 runs of an earlier call" in again.err
    assert "etf-figure-3" in again.out
    monkeypatch.setattr(collection, "_process", dies)
    failed = run("reproduce", "all", "--quick", "--seeds", 2, "--jobs", 1, "--skip", "gsharp-figure-6", "--out", out)
    assert failed.code == 1
    assert "failed" in failed.out
    assert "Traceback" not in failed.err
    assert "its process ended with 3 and left no result" in (out / "report.html").read_text()


@pytest.mark.long
def test_the_record_of_the_docs_is_a_report_again(run, tmp_path):
    record = Path(__file__).parents[2] / "docs" / "data" / "reproduce-full.json"
    done = run("reproduce", "all", "--from", record, "--out", tmp_path, "--json")
    assert done.code == 0, done.err
    page = unescape((tmp_path / "report.html").read_text())
    result = ReproduceAllResult.model_validate(done.document)
    assert sum(result.verdicts.values()) == sum(len(topic.claims) for topic in result.topics) > 200
    assert all(sentence in page for sentence in legend())
    assert all(f"<li>{each}." in page for own in left_out().values() for each in own)
    assert page.count("data:image/svg+xml") >= 10  # what the papers print, drawn from the record alone


def dies(run, draw):
    """In place of a run, in a process of its own."""
    os._exit(3)


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(run):
    one, again = (run("reproduce", "andreas-armida", "--json").document for _ in range(2))
    one["wall_s"] = again["wall_s"] = 0
    assert one == again


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["andreas-scenario-3"], "field 'NAME': got 'andreas-scenario-3', expected one of andreas-scenario-1, "),
        (["andreas-armida", "--plot", "x.jpg"], "expected a file ending in .png, .svg, .pdf"),
        (["andreas-armida", "--plot", "/no/such/folder/x.png"], "expected a file in an existing folder"),
        (["andreas-armida", "--quick", "--full"], "expected --quick or --full, not both"),
        (["andreas-armida", "--out", "x"], "expected all, which alone takes --out, --only, --skip and --from"),
        (["andreas-armida", "--only", "etf"], "expected all, which alone takes --out, --only, --skip and --from"),
        (["andreas-armida", "--from", "x"], "expected all, which alone takes --out, --only, --skip and --from"),
        (["all", "--from", "/no/such/file"], "field '--from': got '/no/such/file', expected a file that can be read"),
        (["all", "--from", __file__], "expected a result.json of reproduce all"),
        (
            ["all", "--from", "x", "--full"],
            "expected no --quick, --full, --seeds, --only or --skip beside it: nothing is run",
        ),
        (["all", "--only", "gsharpp"], "field '--only': got 'gsharpp', expected one of andreas-scenario-1, "),
        (["all", "--only", "gsharp-table-6", "--skip", "gsharp"], "expected fewer names: none is left to run"),
        (["all", "--skip", "cufff"], "(did you mean cuff?)"),
        (["all", "--out", __file__], "expected a folder"),
        (["all", "--out", "/proc/no/folder"], "expected a folder that can be written"),
        (["alll"], "(did you mean all?)"),
        (["all", "--plot", "x.svg"], "expected no file, as report.html has all figures"),
    ],
)
def test_errors_are_one_line(run, arguments, part):
    done = run("reproduce", *arguments, "--json")
    assert (done.code, done.out) == (2, "")
    assert len(done.lines) == 1
    assert part in done.err


def test_unknown_option(run):
    assert run("reproduce", "--seeds", 0).code == 2


def test_help_is_light(modules_after):
    assert not HEAVY & modules_after("reproduce", "--help")
