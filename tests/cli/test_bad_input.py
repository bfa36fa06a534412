"""Whatever is wrong with a file, one line says where it stands, what it is and what was expected; nothing is left."""

from __future__ import annotations

import copy
import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.cli.console import job, problem, run, scenario, write

Change = Callable[[dict], object]
LOG = "job,tenant,submit_s,duration_s,gpus,gpu_type\n"
NAN, INF = float("nan"), float("inf")


def put(*path: str | int, to: object) -> Change:
    """Set what stands at *path*."""

    def change(document: dict) -> None:
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = to

    return change


def in_job(**more: object) -> Change:
    return lambda d: d.get("workload", d)["jobs"][0].update(more)


def log(**more: object) -> Change:
    def change(d: dict) -> None:
        d["workload"] = {"source": "csv", "path": "log.csv", "profiles": "law", "logged_gpu_type": "V100", **more}

    return change


def twice(key: str) -> Change:
    return lambda d: d[key].append(copy.deepcopy(d[key][0]))


def two_jobs_alike(d: dict) -> None:
    jobs = d.get("workload", d)["jobs"]
    jobs.append(copy.deepcopy(jobs[0]))


def both(*changes: Change) -> Change:
    def change(document: dict) -> None:
        for one in changes:
            one(document)

    return change


def waits(electricity: dict) -> Change:
    return both(put("policies", 0, "wait_for_price", to={}), put("electricity", to=electricity))


CAPS = ((0, 9000), (3600, 90), (7200, 9000))


# what is wrong, how the file comes to be so, and what the line must name: field, value, expectation
BOTH: list[tuple[str, Change, tuple[str, ...]]] = [
    ("unknown GPU type", in_job(times_s={"V1000": [100]}), ("a.times_s", "'V1000'", "expected a GPU type")),
    ("too many GPUs", in_job(times_s={"V100": {64: 100}}), ("a", "64 GPUs", "expected a job that some node")),
    ("type not in the cluster", in_job(times_s={"A100": [100]}), ("a", "A100", "expected")),
    ("negative time", in_job(times_s={"V100": [-5]}), ("a.times_s.V100", "'-5.0'", "seconds above 0")),
    ("zero time", in_job(times_s={"V100": [0]}), ("a.times_s.V100", "'0.0'", "seconds above 0")),
    ("NaN time", in_job(times_s={"V100": [NAN]}), ("a.times_s.V100", "'nan'", "a finite number")),
    ("infinite time", in_job(times_s={"V100": [INF]}), ("a.times_s.V100", "'inf'", "a finite number")),
    ("time beyond all measure", in_job(times_s={"V100": [1e300]}), ("a.times_s.V100.0", "'1e+300'", "up to 1e+15")),
    ("weight beyond all measure", in_job(tardiness_weight=1e308), ("a.tardiness_weight", "'1e+308'", "up to 1e+15")),
    (
        "count beyond all measure",
        put("nodes", 0, "count", to=10**12),
        ("nodes.v.count", "1000000000000", "1000000 or less"),
    ),
    ("no time", in_job(times_s={}), ("a.times_s", "'{}'", "a time for at least one GPU type")),
    ("only null times", in_job(times_s={"V100": [None]}), ("a.times_s", "None", "a time for at least one GPU type")),
    ("time as text", in_job(times_s={"V100": ["soon"]}), ("a.times_s.V100", "'soon'", "expected")),
    ("GPU count zero", in_job(times_s={"V100": {0: 5}}), ("a.times_s.V100", "'0'", "a GPU count of 1 or more")),
    ("GPU count as text", in_job(times_s={"V100": {"x": 5}}), ("a.times_s.V100", "'x'", "a whole number")),
    ("due before submission", in_job(submit_s=50, due_s=10), ("a.due_s", "got '10", "not before submission (50")),
    ("NaN due date", in_job(due_s=NAN), ("a.due_s", "'nan'", "a finite number")),
    ("infinite due date", in_job(due_s=INF), ("a.due_s", "'inf'", "a finite number")),
    ("negative submission", in_job(submit_s=-1), ("a.submit_s", "'-1'", "0 or more")),
    ("infinite submission", in_job(submit_s=INF), ("a.submit_s", "'inf'", "a finite number")),
    ("negative weight", in_job(tardiness_weight=-1), ("a.tardiness_weight", "'-1'", "0 or more")),
    ("NaN weight", in_job(tardiness_weight=NAN), ("a.tardiness_weight", "'nan'", "a finite number")),
    ("negative GPU power", in_job(gpu_w={"V100": -1}), ("a.gpu_w.V100", "'-1.0'", "0 or more")),
    ("GPU power of no type", in_job(gpu_w={"V1000": 1}), ("a.gpu_w", "'V1000'", "expected a GPU type")),
    ("request of no type", in_job(requested_gpu_type="V1000"), ("a.requested_gpu_type", "'V1000'", "a GPU type")),
    ("request without times", in_job(requested_gpu_type="T4"), ("a.requested_gpu_type", "'T4'", "has times for")),
    ("job without a name", in_job(name=""), ("jobs.0.name", "''", "at least 1 character")),
    ("duplicate nodes", twice("nodes"), ("nodes", "'v'", "distinct")),
    ("duplicate jobs", two_jobs_alike, ("jobs", "'a'", "distinct")),
    ("node without GPUs", put("nodes", 0, "gpus", to=0), ("nodes.v.gpus", "'0'", "1 or more")),
    ("half a GPU", put("nodes", 0, "gpus", to=1.5), ("nodes.v.gpus", "'1.5'", "a whole number")),
    ("negative power", put("nodes", 0, "idle_w", to=-5), ("nodes.v.idle_w", "'-5'", "0 or more")),
    ("NaN power", put("nodes", 0, "gpu_w", to=NAN), ("nodes.v.gpu_w", "'nan'", "a finite number")),
    ("unknown key", put("nodes", 0, "gpu", to=1), ("nodes.v.gpu", "did you mean gpus?", "expected one of the fields")),
    ("unknown key at the top", put("intervals_s", to=1), ("intervals_s", "did you mean interval_s?", "expected")),
    ("wrong type", put("nodes", to="v100"), ("nodes", "'v100'", "a list")),
    ("text for a number", put("interval_s", to="often"), ("interval_s", "'often'", "a number")),
    ("interval zero", put("interval_s", to=0), ("interval_s", "'0'", "above 0")),
    (
        "negative price",
        put("electricity", to={"price_per_kwh": -1}),
        ("electricity.price_per_kwh", "'-1'", "0 or more"),
    ),
    ("PUE below one", put("electricity", to={"pue": 0.9}), ("electricity.pue", "'0.9'", "1 or more")),
    ("missing price series", put("electricity", to={"series_file": "no.csv"}), ("no.csv", "an existing file")),
    (
        "price series in disorder",
        put("electricity", to={"series": [{"from_s": s, "price_per_kwh": 1} for s in (5, 5)]}),
        ("electricity.series", "strictly increasing"),
    ),
    ("no nodes", put("nodes", to=[]), ("nodes", "at least")),
    ("tenant of weight zero", put("tenants", to=[{"name": "x", "weight": 0}]), ("tenants.x.weight", "'0'", "above 0")),
]
SIMULATE: list[tuple[str, Change, tuple[str, ...]]] = [
    (
        "cap below idle power",
        both(put("electricity", to={"power_cap_w": 100}), put("unused_nodes", to={"state": None})),
        ("electricity.power_cap_w", "'100'", "W or more, the idle power of all nodes"),
    ),
    (
        "cap too low for a job",
        put("electricity", to={"power_cap_w": 170}),
        ("electricity.power_cap_w", "'170'", "for job", "to run alone"),
    ),
    (
        "cap in a series below idle power",
        both(
            put("electricity", to={"series": [{"from_s": s, "price_per_kwh": 1, "power_cap_w": w} for s, w in CAPS]}),
            put("unused_nodes", to={"state": None}),
        ),
        ("electricity.series.power_cap_w", "'90'", "the idle power of all nodes"),
    ),
    (
        "cap beside a capacity plan, too low for a job with all GPUs of its node busy",
        both(put("electricity", to={"power_cap_w": 200}), put("capacity", to={"policy": "always-on"})),
        ("electricity.power_cap_w", "'200'", "to run alone"),
    ),
    (
        "prices with a hole",
        waits({"series": [{"from_s": 3600 * h, "price_per_kwh": 1} for h in range(24) if h != 7]}),
        ("electricity.series.7.from_s", "'28800 after 21600'", "a price each 3600 s"),
    ),
    (
        "prices of the past",
        both(
            waits({"series": [{"from_s": -7200, "price_per_kwh": 1}, {"from_s": -3600, "price_per_kwh": 2}]}),
        ),
        ("electricity.series", "'the last price from -3600 s on'", "prices after 0 s"),
    ),
    (
        "waiting for carbon that is not known",
        both(put("policies", 0, "wait_for_price", to={"minimise": "carbon"}), put("electricity", to={"pue": 1})),
        ("electricity.carbon_g_per_kwh", "'none'", "a carbon intensity at all times"),
    ),
    (
        "negative price for ever",
        put("electricity", to={"series": [{"from_s": 0, "price_per_kwh": 1}, {"from_s": 9, "price_per_kwh": -1}]}),
        ("electricity.series.1.price_per_kwh", "'-1'", "0 or more in its last step"),
    ),
    (
        "negative price that repeats",
        put("electricity", to={"series": [{"from_s": 0, "price_per_kwh": -1}], "repeat_s": 9}),
        ("electricity.series.0.price_per_kwh", "'-1'", "0 or more in a series that repeats"),
    ),
    (
        "no time of day",
        put("electricity", to={"daily": {"25:00": 1}}),
        ("electricity.daily", "'25:00'", "times of day from 00:00 to 23:59"),
    ),
    (
        "prices twice",
        put("electricity", to={"daily": {"22:00": 1}, "series_file": "x.csv"}),
        ("electricity.daily", "either `daily` or `series_file`"),
    ),
    (
        "waiting without a unit of probability",
        put("policies", 0, "wait_for_price", to={"sure": 1.5}),
        ("policies.0.wait_for_price.sure", "'1.5'", "1 or less"),
    ),
    ("a version to come", put("version", to=3), ("version", "'3'", "expected 1, the only version")),
    ("no jobs", put("workload", "jobs", to=[]), ("workload.jobs", "at least 1")),
    ("no workload", lambda d: d.pop("workload"), ("workload", "the jobs to simulate")),
    ("no source", put("workload", to={"jobs": [job()]}), ("workload.source", "to be given")),
    ("unknown source", put("workload", "source", to="pbs"), ("workload.source", "'pbs'", "'slurm'")),
    ("duplicate policies", twice("policies"), ("policies", "'random-greedy'", "distinct")),
    ("unknown solver", put("policies", 0, "solver", to="magic"), ("policies.0.solver", "'magic'", "lookahead, ")),
    ("zero iterations", put("policies", 0, "iterations", to=0), ("policies.0.iterations", "'0'", "1 or more")),
    ("no policies", put("policies", to=[]), ("policies", "at least 1")),
    ("unknown tenant", put("tenants", to=[{"name": "z", "weight": 2}]), ("tenants", "'z'", "x, y")),
    ("duplicate tenants", put("tenants", to=[{"name": "x"}, {"name": "x"}]), ("tenants", "'x'", "distinct")),
    ("unknown power state", put("unused_nodes", to={"state": "nap"}), ("unused_nodes.state", "'nap'", "off")),
    (
        "its own unknown power state",
        put("policies", 1, "unused_nodes", to={"state": "nap"}),
        ("unused_nodes.state", "'nap'", "off"),
    ),
    (
        "outage of no node",
        put("outages", to=[{"node": "w", "from_s": 0, "to_s": 9}]),
        ("outages", "'w'", "name of a node"),
    ),
    (
        "outage backwards",
        put("outages", to=[{"node": "v", "from_s": 9, "to_s": 3}]),
        ("outages.0.to_s", "'3'", "after from_s (9)"),
    ),
    (
        "outage without end",
        put("outages", to=[{"node": "v", "from_s": 9, "to_s": INF}]),
        ("outages.0.to_s", "'inf'", "finite"),
    ),
    ("nodes beside andreas", put("workload", to={"source": "andreas"}), ("nodes", "defines its nodes")),
    ("zero epochs", in_job(epochs=0), ("a.epochs", "'0'", "1 or more")),
    ("error of run times too large", put("runtime_error", to=9), ("runtime_error", "'9'", "2 or less")),
    (
        "slack below one",
        log(due_dates={"slack_factor": [0.5, 2]}),
        ("workload.due_dates.slack_factor", "0.5", "1 <= low"),
    ),
    ("due dates of no kind", log(due_dates="never"), ("workload.due_dates", "'never'", "none")),
    (
        "due dates by no rule",
        log(due_dates={"rule": "limit"}),
        ("workload.due_dates.rule", "'limit'", "'time-limit'"),
    ),
    ("log missing", log(path="no.csv"), ("no.csv", "an existing file")),
    ("log is a folder", log(path="folder.csv"), ("folder.csv", "a file, not a folder")),
    ("column missing", log(path="short.csv"), ("short.csv", "duration_s", "expected")),
    ("empty trace", log(path="empty.csv"), ("empty.csv", "'none'", "at least one row")),
    ("log cut short", log(path="cut.csv.gz"), ("cut.csv.gz", "a truncated one", "a complete gzip file")),
    ("log is no text", log(path="bytes.csv"), ("bytes.csv", "byte 0xff", "UTF-8 text")),
    ("log empty", log(path="nothing.csv"), ("nothing.csv", "an empty file", "some content")),
    ("negative run time", log(path="negative.csv"), ("negative.csv", "duration_s", "-60", "expected")),
    ("week outside the log", log(begin="90000000"), ("workload.begin", "90000000", "expected")),
    ("begin is no time", log(begin="tomorrow"), ("workload.begin", "'tomorrow'", "expected")),
    ("no days", log(days=0), ("workload.days", "'0'", "above 0")),
    ("no path for a log", put("workload", to={"source": "slurm"}), ("workload.path", "the path of a log")),
]
PLACE: list[tuple[str, Change, tuple[str, ...]]] = [
    ("no jobs key", lambda d: d.pop("jobs"), ("jobs", "to be given")),
    ("NaN now", put("now_s", to=NAN), ("now_s", "'nan'", "a finite number")),
    ("runs on no node", in_job(current={"nodes": ["w"], "gpus": 1, "remaining_s": 5}), ("a.current", "'w'", "node")),
    (
        "runs on too many GPUs",
        in_job(current={"nodes": ["v"], "gpus": 5, "remaining_s": 5}),
        ("a.current", "5", "expected"),
    ),
    (
        "runs twice on a node",
        in_job(current={"nodes": ["v", "v"], "gpus": 2, "remaining_s": 5}),
        ("a.current", "different nodes"),
    ),
    (
        "nothing remains",
        in_job(current={"nodes": ["v"], "gpus": 1, "remaining_s": 0}),
        ("a.current.remaining_s", "'0'", "above 0"),
    ),
    ("duplicate tenants", put("tenants", to=[{"name": "x"}, {"name": "x"}]), ("tenants", "'x'", "distinct")),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = "".join(f"j{i},t,{60 * i},600,1,V100\n" for i in range(3))
    (tmp_path / "log.csv").write_text(LOG + rows)
    (tmp_path / "short.csv").write_text("job,tenant,submit_s,gpus\nj,t,0,1\n")
    (tmp_path / "empty.csv").write_text(LOG)
    (tmp_path / "nothing.csv").write_text("")
    (tmp_path / "negative.csv").write_text(LOG + "j,t,0,-60,1,V100\n")
    (tmp_path / "bytes.csv").write_bytes(LOG.encode() + b"j,\xff\xfe,0,60,1,V100\n")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress((LOG + 500 * rows).encode())[:-20])
    return tmp_path


def refused(folder: Path, verb: str, file: Path, *named: str) -> None:
    """The command says one line, and leaves the folder as it was."""
    before = sorted(folder.rglob("*"))
    out = ("--out", folder / "out" / "deep") if verb == "simulate" else ()
    done = run(verb, file, *out, "--json")
    assert (done.code, done.out) == (2, ""), done.err
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("error: ")
    for part in named:
        assert part in done.err
    assert sorted(folder.rglob("*")) == before


def named(rows: list[tuple[str, Change, tuple[str, ...]]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(("change", "parts"), [pytest.param(*row[1:], id=row[0]) for row in rows])


@pytest.mark.slow
@named(BOTH + SIMULATE)
def test_simulate_says_what_is_wrong(change, parts, folder):
    document = copy.deepcopy(scenario())
    change(document)
    file = write(folder / "bad.yaml", document)
    own = () if any(".csv" in part for part in parts) else ("bad.yaml",)
    refused(folder, "simulate", file, *own, *parts)


@named(BOTH + PLACE)
def test_place_says_what_is_wrong(change, parts, folder):
    document = copy.deepcopy(problem())
    change(document)
    file = write(folder / "bad.yaml", document)
    own = () if any(".csv" in part for part in parts) else ("bad.yaml",)
    refused(folder, "place", file, *own, *parts)


VALID = {"simulate": scenario(), "place": problem()}
FILES: list[tuple[str, Callable[[bytes], bytes], tuple[str, ...]]] = [
    ("empty", lambda _: b"", ("an empty file", "some content")),
    ("blank", lambda _: b" \n\n", ("an empty file", "some content")),
    ("only a comment", lambda _: b"# nothing\n", ("a mapping of fields at the top",)),
    ("a list", lambda _: b"- a\n- b\n", ("a mapping of fields at the top",)),
    ("not UTF-8", lambda text: b"# caf\xe9\n" + text, ("byte 0xe9 at position 5", "UTF-8 text")),
    ("UTF-16", lambda text: text.decode().encode("utf-16"), ("byte 0xff at position 0", "UTF-8 text")),
    ("invalid YAML", lambda text: text + b"nodes: [\n", ("line", "valid YAML or JSON")),
    ("tabs", lambda text: b"a:\n\t- b\n" + text, ("line 2", "valid YAML or JSON")),
    ("two documents", lambda text: text + b"---\n" + text, ("line", "valid YAML or JSON")),
    ("a key twice", lambda text: text + b"nodes: []\n", ("'nodes'", "line", "each key once")),
    ("invalid JSON", lambda _: b'{"nodes": [1, 2', ("valid YAML or JSON",)),
    ("a JSON key twice", lambda _: b'{"nodes": 1, "nodes": 2}', ("'nodes'", "each key once")),
    ("truncated gzip", lambda text: gzip.compress(text)[:-9], ("a truncated one", "a complete gzip file")),
    ("damaged gzip", lambda text: gzip.compress(text)[:20] + b"xxxx" + gzip.compress(text)[24:], ("gzip file",)),
    ("a binary", lambda _: b"\x00\x01\x02\x03" * 50, ("expected",)),
    ("an unknown tag", lambda text: b"x: !!python/object:os.system {}\n" + text, ("line 1", "valid YAML or JSON")),
    ("nested too deeply", lambda _: b"a: " + 5000 * b"[", ("valid YAML or JSON",)),
]


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["simulate", "place"])
@pytest.mark.parametrize(("spoil", "parts"), [pytest.param(*row[1:], id=row[0]) for row in FILES])
def test_files_that_are_none(verb, spoil, parts, tmp_path):
    file = tmp_path / "bad.yaml"
    file.write_bytes(spoil(yaml.safe_dump(VALID[verb]).encode()))
    refused(tmp_path, verb, file, "bad.yaml", *parts)


@pytest.mark.parametrize("verb", ["simulate", "place"])
def test_missing_file_and_folder(verb, tmp_path):
    refused(tmp_path, verb, tmp_path / "no.yaml", "no.yaml", "expected an existing file")
    refused(tmp_path, verb, tmp_path, str(tmp_path), "expected a file, not a folder")


@pytest.mark.slow
def test_every_row_is_about_what_it_says(folder):
    """The same files without the mistake are accepted."""
    file = write(folder / "good.yaml", scenario())
    assert run("simulate", file, "--jobs", 1).code == 0
    assert run("place", write(folder / "p.yaml", problem())).code == 0
    document = scenario(policies=[{"solver": "fifo"}])
    log()(document)
    assert run("simulate", write(folder / "log.yaml", document), "--json").document["jobs"] == 3
