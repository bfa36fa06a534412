import gzip
import json
import re

import pytest
import yaml

from commonwatt.data import third_party
from commonwatt.data.catalog import CATALOG
from commonwatt.data.files import validate
from commonwatt.data.readers.plain import COLUMNS
from commonwatt.data.workload import read_workload_log
from commonwatt.model.results import DataCheckResult, DataListResult
from commonwatt.model.scenario import LogWorkload
from tests.cli.console import run

HEAVY = {"numba", "polars", "matplotlib", "plotly", "joblib", "pydantic", "numpy"}
ROWS = ["job,tenant,submit_s,duration_s,gpus,gpu_type"] + [
    f"j{i},{'ab'[i % 2]},2024-03-{1 + i // 4:02}T{6 * (i % 4):02}:00:00Z,{3600 * (1 + i % 3)},{1 + i % 2},V100"
    for i in range(40)
]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(ROWS) + "\n")
    return path


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path / "nowhere"))


def test_list(run, nowhere):
    done = run("data", "list", "--json")
    assert (done.code, done.err) == (0, "")
    result = DataListResult.model_validate(done.document)
    assert result.folder is None
    assert [row.name for row in result.datasets] == [entry.name for entry in CATALOG]
    assert all(row.found is None and row.url.startswith("https://") for row in result.datasets)
    assert [row.name for row in result.formats] == ["slurm", "swf", "csv"]
    told = run("data", "list").out
    assert "available  no" in told
    assert "workload: {source: philly, path: FILE, days: 7}" in told


def test_list_says_where(run, monkeypatch, tmp_path):
    (tmp_path / "philly_jobs.csv.gz").write_text("x")
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path))
    found = {row["name"]: row["found"] for row in run("data", "list", "--json").document["datasets"]}
    assert found["philly"] == str(tmp_path / "philly_jobs.csv.gz")
    assert found["helios"] is None


@pytest.mark.slow
def test_check(installed, log, tmp_path):
    done = installed("data", "check", log, "--json", "--plot", tmp_path / "load.png")
    assert done.code == 0
    assert done.lines == [f"written: {tmp_path / 'load.png'}"]
    result = DataCheckResult.model_validate(done.document)
    assert (result.format, result.rows, result.gpu_types) == ("csv", 40, ("V100",))
    found = result.log
    assert (found.first, found.last) == ("2024-03-01T00:00:00Z", "2024-03-10T18:00:00Z")
    assert [(row.value, row.jobs) for row in found.by_gpus] == [("1", 20), ("2", 20)]
    hours = sum((1 + i % 3) * (1 + i % 2) for i in range(40))
    assert found.gpu_hours == pytest.approx(hours)
    assert found.gpu_hours_per_day == pytest.approx(hours / 9.75)
    assert (found.peak_gpus, found.in_use_from, found.median_wait_s) == (2, "submissions", None)
    assert found.mean_gpus == pytest.approx((hours - 2) / (9.75 * 24))  # the last job runs after the last submission
    assert (tmp_path / "load.png").read_bytes().startswith(b"\x89PNG")


def test_check_in_words(run, log):
    done = run("data", "check", log)
    assert (done.code, done.err) == (0, "")
    for part in ("40 of 2 tenants", "median 2.00 h", "peak 2 at 2024-03-01T06:00:00Z", "source: csv"):
        assert part in done.out.replace("\N{NO-BREAK SPACE}", " "), part


def test_the_suggested_workload_can_be_read(run, log, tmp_path):
    text = run("data", "check", log, "--json").document["log"]["workload"]
    workload = validate(yaml.safe_load(text)["workload"], LogWorkload)
    assert len(read_workload_log(workload, tmp_path)) >= 28  # a week of four a day


def test_columns(run, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("\n".join(["job,who,when,took,cards", *(f"{i},x,{60 * i},{30 + i},1" for i in range(9))]))
    pairs = ["submit_s=when", "duration_s=took", "gpus=cards", "tenant=who"]
    done = run("data", "check", path, *(part for pair in pairs for part in ("--column", pair)), "--json")
    assert done.code == 0
    assert done.document["format"] == "csv"
    assert done.document["log"]["peak_gpus"] == 1
    workload = yaml.safe_load(done.document["log"]["workload"])["workload"]
    assert workload["columns"] == dict(pair.split("=") for pair in pairs)


SACCT = """JobID|Account|User|Submit|Start|Elapsed|Timelimit|State|AllocTRES|ReqTRES
1|p|u|2024-01-01T00:00:00|2024-01-01T00:01:00|01:00:00|02:00:00|COMPLETED|gres/gpu=2|gres/gpu=2
"""
SWF = "; Version: 2.2\n" + " ".join(["1", "0", "5", "60", "4", *["-1"] * 13]) + "\n"
PHILLY = "job_id,submit_time,duration_s,num_gpus,virtual_cluster\na,2017-10-01 00:00:00,60,1,v\n"
ALIBABA = "name,num_gpu,qos,creation_time,deletion_time,scheduled_time\na,1,LS,0,60,1\n"
HELIOS = "job_id,user,gpu_num,submit_time,start_time,duration\n1,u,2,2020-04-01 00:00:00,2020-04-01 00:00:05,60\n"
ATTEMPT = {"start_time": "2017-10-03 00:01:00", "end_time": "2017-10-03 01:00:00", "detail": [{"gpus": ["gpu0"]}]}
PUBLISHED = json.dumps(
    [{"status": "Pass", "vc": "v", "jobid": "j", "attempts": [ATTEMPT], "submitted_time": "2017-10-03 00:00:00"}]
)
GAVEL = "model,batch_size,gpu_type,num_gpus,consolidated,steps_per_s,samples_per_s\nLM,5,k80,1,1,1,5\n"
ZEUS = """gpu_type,dataset,model,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_power_w
A40,d,m,8,a,300,1,2
"""


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("text", "name"),
    [
        (SACCT, "slurm"), (SWF, "swf"), (PHILLY, "philly"), (PUBLISHED, "philly"), (ALIBABA, "alibaba"),
        (HELIOS, "helios"), (GAVEL, "gavel"), (ZEUS, "zeus"),
    ],
)  # fmt: skip
def test_the_format_is_told_by_the_content(run, tmp_path, text, name, zipped):
    path = tmp_path / "mine"
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())
    done = run("data", "check", path, "--json")
    assert done.code == 0, done.err
    assert (done.document["format"], done.document["rows"]) == (name, 1)


def test_profiles_have_nothing_to_draw(run, tmp_path):
    (tmp_path / "g.csv").write_text(GAVEL)
    done = run("data", "check", tmp_path / "g.csv", "--plot", tmp_path / "x.png")
    assert done.code == 2
    assert "nothing to draw" in done.err
    assert "gavel profiles" in run("data", "check", tmp_path / "g.csv").out


def _bad(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_errors_are_one_line(run, tmp_path, log):
    whole = gzip.compress("\n".join(ROWS).encode())
    cases = [
        (["data", "check", tmp_path / "none.csv"], "none.csv: expected an existing file"),
        (["data", "check", "philly2"], "got 'philly2', expected an existing file, or one of philly, alibaba"),
        (["data", "check", tmp_path], "expected a file, not a folder"),
        (["data", "check", log, "--format", "pbs"], "'pbs', expected one of philly, alibaba, helios, slurm, swf, csv"),
        (["data", "check", log, "--format", "philly"], "field 'submit_time': expected a column of this name"),
        (["data", "check", log, "--column", "gpus=cards"], "field 'cards': expected a column of this name"),
        (["data", "check", log, "--column", "cards"], "got 'cards', expected a pair such as gpus=num_gpus"),
        (["data", "check", log, "--column", "x=job"], "got 'x', expected one of job, tenant"),
        (["data", "check", log, "--column", "gpus=a", "--column", "gpus=b"], "each column once"),
        (["data", "check", log, "--format", "swf", "--column", "job=job"], "as the format fixes them"),
        (["data", "check", log, "--plot", tmp_path / "x.jpg"], "expected a file ending in .png, .svg, .pdf"),
        (["data", "check", log, "--plot", tmp_path / "no" / "x.png"], "a file in an existing folder"),
        (["data", "check", _bad(tmp_path, "cut.gz", whole[:-9])], "got 'a truncated one', expected a complete gzip"),
        (["data", "check", _bad(tmp_path, "empty", "")], "an empty file"),
        (["data", "check", _bad(tmp_path, "head.csv", ROWS[0] + "\n")], "at least one row below the header"),
        (["data", "check", _bad(tmp_path, "x.txt", "a,b\n1,2\n")], "field '--format': expected one of philly, "),
        (["data", "check", _bad(tmp_path, "x.json", '{"a": 1}')], "field '--format': expected one of philly, "),
    ]  # fmt: skip
    for arguments, part in cases:
        done = run(*arguments, "--json")
        assert (done.code, done.out) == (2, ""), arguments
        assert len(done.lines) == 1, done.err
        assert done.err.startswith("error: ")
        assert part in done.err, done.err


def test_a_public_name_without_the_data(run, nowhere):
    done = run("data", "check", "philly")
    assert done.code == 2
    assert "get it from https://github.com/msr-fiddle/philly-traces" in done.err
    assert len(done.lines) == 1


def test_the_help_names_every_column(run):
    said = " ".join(run("data", "check", "--help").out.split())
    named = re.search(r"name of the column for (.*?); repeatable", said)[1]
    assert set(re.findall(r"\w+", named)) - {"or"} == set(COLUMNS)
    assert "afterok:12:13,afterany:7" in said


@pytest.mark.slow
def test_help_is_light(modules_after):
    for arguments in (["data", "--help"], ["data", "list", "--help"], ["data", "check", "--help"]):
        assert not HEAVY & modules_after(*arguments), arguments


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "rows", "peak", "begin"),
    [("philly", 67_905, 1_243, "2017-10-22T00:00:00Z"), ("alibaba", 3_986, 63, "10022400")],
)
def test_public_traces_by_name(run, name, rows, peak, begin):
    if third_party.find(f"{name}_jobs.csv.gz") is None:
        pytest.skip(f"no trace {name}: set {third_party.VARIABLE}")
    document = run("data", "check", name, "--json").document
    assert (document["format"], document["rows"], document["log"]["peak_gpus"]) == (name, rows, peak)
    workload = yaml.safe_load(document["log"]["workload"])["workload"]
    assert "path" not in workload
    assert workload["begin"] == begin


@pytest.mark.slow
def test_an_error_of_the_installed_command(installed, tmp_path):
    done = installed("data", "check", tmp_path / "none.csv")
    assert (done.code, done.out) == (2, "")
    assert done.lines == [f"error: {tmp_path / 'none.csv'}: expected an existing file"]


def test_where_submissions_are_the_starts_no_wait_is_known(tmp_path):
    path = tmp_path / "jobs.csv"
    path.write_text("start,end,gpus\n100,160,1\n200,300,2\n")
    assert run("data", "check", path, "--json").document["log"]["median_wait_s"] is None
    assert "median wait" not in run("data", "check", path).out
    path.write_text("submit,start,end,gpus\n90,100,160,1\n180,200,300,2\n")
    assert run("data", "check", path, "--json").document["log"]["median_wait_s"] == 15.0


def test_what_describes_nodes_is_no_job_log(tmp_path):
    path = tmp_path / "nodes.txt"
    path.write_text("NodeName=a-1 Gres=gpu:a100:8\n")
    assert "this is what `scontrol show node` prints: use `commonwatt init --from`" in run("data", "check", path).err
