import math
import stat

import pytest

from commonwatt.data.files import load_yaml, validate, write_atomic
from commonwatt.model.errors import InputError
from commonwatt.model.place_file import PlaceFile
from commonwatt.model.scenario import JobsWorkload, LogWorkload, Scenario

GOOD = """
name: two
workload:
  source: jobs
  jobs:
    - {name: j1, submit_s: 0, due_s: 100, times_s: {V100: [10, null, 5]}}
    - {name: j2, submit_s: 1e1, times_s: {V100: {1: 10, 2: 6}}}
nodes: [{name: n, gpu_type: V100, gpus: 2, idle_w: 100, gpu_w: 200}]
"""


def load(write, text, model=Scenario, name="s.yaml"):
    return load_yaml(write(name, text), model)


def fails(write, text, model=Scenario, name="s.yaml") -> str:
    with pytest.raises(InputError) as caught:
        load(write, text, model, name)
    line = str(caught.value)
    assert "\n" not in line
    folder = str(write(name, text).parent)
    return line.replace(f"{folder}/", "")


def test_a_good_file(write):
    scenario = load(write, GOOD)
    assert isinstance(scenario.workload, JobsWorkload)
    first, second = scenario.workload.jobs
    assert first.times_s == {"V100": (10.0, None, 5.0)}
    assert second.times_s == {"V100": {1: 10.0, 2: 6.0}}
    assert second.submit_s == 10.0


def test_gzip_and_json(write):
    text = '{"nodes": [{"name": "n", "gpu_type": "T4", "gpus": 1, "idle_w": 1, "gpu_w": 1}], "jobs": []}'
    assert load(write, text, PlaceFile, "p.json").nodes[0].gpu_type == "T4"
    assert load_yaml(write("p.json.gz", text, zipped=True), PlaceFile).jobs == ()


def test_yaml_that_begins_with_a_brace(write):
    assert (
        load(write, "{nodes: [{name: n, gpu_type: T4, gpus: 1, idle_w: 1, gpu_w: 1}], jobs: []}", PlaceFile).jobs == ()
    )


def test_yaml_as_people_mean_it(write):
    text = """
name: off
workload: {source: philly, begin: 2017-10-16, days: 010}
nodes: [{name: "1", gpu_type: V100, gpus: 2, idle_w: 1e2, gpu_w: 200}]
unused_nodes: {state: off, after_s: 6E+1}
preemption: {allowed: false}
"""
    scenario = load(write, text)
    assert scenario.name == "off"
    assert scenario.unused_nodes.state == "off"
    assert scenario.unused_nodes.after_s == 60
    assert scenario.preemption.allowed is False
    assert isinstance(scenario.workload, LogWorkload)
    assert scenario.workload.begin == "2017-10-16"
    assert scenario.workload.days == 10


def test_null_state(write):
    assert load(write, GOOD + "unused_nodes: {state: null}\n").unused_nodes.state is None
    assert load(write, GOOD + "unused_nodes: {state: }\n").unused_nodes.state is None


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("due_s: 100", "due_s: .nan"), "s.yaml: field 'workload.jobs.j1.due_s': got 'nan', expected a finite number"),
        (
            ("submit_s: 0", "submit_s: -1"),
            "s.yaml: field 'workload.jobs.j1.submit_s': got '-1', expected a number, 0 or more",
        ),
        (
            ("null, 5", "5, .inf"),
            "s.yaml: field 'workload.jobs.j1.times_s.V100.2': got 'inf', expected a finite number",
        ),
        (("2: 6", "2: x"), "s.yaml: field 'workload.jobs.j2.times_s.V100.2': got 'x', expected a number"),
        (("gpus: 2", "gpus: two"), "s.yaml: field 'nodes.n.gpus': got 'two', expected a whole number"),
        (("gpus: 2", "gpus: 0"), "s.yaml: field 'nodes.n.gpus': got '0', expected a number, 1 or more"),
        (("gpu_type: V100, gpus", "gpus"), "s.yaml: field 'nodes.n.gpu_type': expected this field to be given"),
        (("  source: jobs\n", ""), "s.yaml: field 'workload.source': expected this field to be given"),
        (("name: two\n", "name: two\nname: three\n"), "s.yaml, line 3: field 'name': expected each key once"),
        (("name: two", "name: ''"), "s.yaml: field 'name': got '', expected text of at least 1 character"),
        (("name: two", "electricity: 5"), "s.yaml: field 'electricity': got '5', expected a mapping of fields"),
        (
            ("name: two", "electricity: {pue: 0.5}"),
            "s.yaml: field 'electricity.pue': got '0.5', expected a number, 1 or more",
        ),
        (
            ("name: two", "preemption: {allowed: maybe}"),
            "s.yaml: field 'preemption.allowed': got 'maybe', expected true or false",
        ),
        (("name: two", "policies: []"), "s.yaml: field 'policies': got '[]', expected at least 1 entry"),
        (("name: two", "runtime_error: 3"), "s.yaml: field 'runtime_error': got '3', expected a number, 2 or less"),
        (
            ("name: two", "policies: [{solver: fifo}, {solver: fifo}]"),
            "s.yaml: field 'policies': got \"'fifo' twice\", expected distinct names",
        ),
        (
            ("name: two", "outages: [{node: n, from_s: 5, to_s: 5}]"),
            "s.yaml: field 'outages.0.to_s': got '5', expected a time after from_s (5)",
        ),
    ],
)
def test_one_line_names_file_field_value_and_expectation(write, change, line):
    assert change[0] in GOOD
    assert fails(write, GOOD.replace(*change, 1)) == line


def test_unknown_keys_are_refused_with_a_hint(write):
    line = fails(write, GOOD.replace("name: j1, submit_s", "name: j1, submits"))
    assert line.startswith(
        "s.yaml: field 'workload.jobs.j1.submits': expected one of the fields name, tenant, submit_s"
    )
    assert line.endswith("(did you mean submit_s?)")
    line = fails(write, "workload: {source: philly, dayz: 1}\nnodes: []")
    assert line.startswith("s.yaml: field 'workload.dayz': expected one of the fields logged_gpu_type")
    assert "jobs_per_day" not in line  # that is another workload's
    assert line.endswith("(did you mean days?)")


def test_unknown_workload(write):
    line = fails(write, GOOD.replace("source: jobs", "source: job"))
    assert line.startswith("s.yaml: field 'workload.source': got 'job', expected one of 'philly', 'alibaba', ")


def test_a_wrong_choice(write):
    line = fails(write, GOOD + "policies: [{solver: fifoo}]")
    assert line.startswith("s.yaml: field 'policies.0.solver': got 'fifoo', expected one of lookahead, ")
    assert line.endswith("(did you mean fifo?)")


def test_messages_of_our_own_validators(write):
    text = GOOD.replace("workload:\n  source: jobs", "workload:\n  source: jobs") + "interval_s: 0\n"
    assert fails(write, text) == "s.yaml: field 'interval_s': got '0', expected a number above 0"
    due = "workload: {source: philly, due_dates: {slack_factor: [3, 2]}}"
    assert fails(write, due) == (
        "s.yaml: field 'workload.due_dates.slack_factor': got '(3.0, 2.0)', expected 1 <= low <= high"
    )
    job = "{name: j, submit_s: 9, due_s: 5, tardiness_weight: 1, times_s: {T4: [1]}}"
    text = f"nodes: [{{name: n, gpu_type: T4, gpus: 1, idle_w: 1, gpu_w: 1}}]\njobs: [{job}]"
    assert fails(write, text, PlaceFile).startswith("s.yaml: field 'jobs.j.due_s': got '5', expected ")
    assert fails(write, "workload: {source: philly}") == "s.yaml: field 'nodes': expected at least one node"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: [1", "s.yaml, line 1: got \"expected ',' or ']', but got '<stream end>'\", expected valid YAML or JSON"),
        ("a: 1\nb: @\n", "s.yaml, line 2: got"),
        ("- 1", "s.yaml: got '[1]', expected a mapping of fields at the top"),
        ("just words", "s.yaml: got 'just words', expected a mapping of fields at the top"),
        ('{"a": 1, "a": 2}', "s.yaml: field 'a': expected each key once"),
        ("{a: 1, a: 2}", "s.yaml, line 1: field 'a': expected each key once"),
        ("", "s.yaml: got 'an empty file', expected some content"),
        ("# nothing\n", "s.yaml: expected a mapping of fields at the top"),
        ("[" * 5000, "s.yaml: got"),
        ("a: 1\nb: !!bool foo", "s.yaml, line 2: got 'what is no bool', expected valid YAML or JSON"),
        ("{a: !!bool foo}", "s.yaml, line 1: got 'what is no bool', expected valid YAML or JSON"),
        ("a: !!timestamp foo", "s.yaml, line 1: got 'what is no timestamp', expected valid YAML or JSON"),
        ("!!seq a: 1", "s.yaml, line 1: got 'found unhashable key', expected valid YAML or JSON"),
        ("a: !!python/object:os.system {}", "s.yaml, line 1: got"),
        ("{? [a] : 1}", "s.yaml"),
    ],
)
def test_files_that_are_no_document(write, text, line):
    assert fails(write, text).startswith(line)


def test_nan_in_json(write):
    text = '{"jobs": [], "nodes": [{"name": "n", "gpu_type": "T4", "gpus": 1, "idle_w": NaN, "gpu_w": 1}]}'
    assert fails(write, text, PlaceFile) == "s.yaml: field 'nodes.n.idle_w': got 'nan', expected a finite number"


def test_missing_file(tmp_path):
    with pytest.raises(InputError, match=r"no\.yaml: expected an existing file"):
        load_yaml(tmp_path / "no.yaml", Scenario)


def test_validate_names_no_file_for_a_request_body():
    with pytest.raises(InputError) as caught:
        validate({"nodes": [], "jobs": []}, PlaceFile)
    assert str(caught.value) == "field 'nodes': got '[]', expected at least 1 entry"


SERIES = "electricity: {series_file: price.csv, repeat_s: 86400}\n"


@pytest.mark.slow
def test_price_series_is_read_beside_the_file(write):
    write("price.csv", "from_s,price_per_kwh,carbon_g_per_kwh\n0,0.1,300\n3600,0.3,\n")
    electricity = load(write, GOOD + SERIES).electricity
    assert [p.from_s for p in electricity.series] == [0, 3600]
    assert [p.price_per_kwh for p in electricity.series] == [0.1, 0.3]
    assert [p.carbon_g_per_kwh for p in electricity.series] == [300, None]
    assert electricity.series_file is None
    tariff = electricity.tariff()
    assert tariff.carbon is None  # not known throughout
    assert math.isclose(float(tariff.cost(3.6e6, 3599, 3601)), (0.1 + 0.3) * electricity.pue)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, "price.csv: expected an existing file"),
        ("from_s\n0\n", "price.csv: field 'price_per_kwh': expected a column of this name; the file has from_s"),
        (
            "from_s,price_per_kwh\n0,nan\n",
            "price.csv, line 2: field 'price_per_kwh': got 'nan', expected a finite number",
        ),
        (
            "from_s,price_per_kwh\n0,-1\n",
            "price.csv: field 'series.0.price_per_kwh': got '-1', expected 0 or more in a series that repeats",
        ),
        (
            "from_s,price_per_kwh\n0,1\n0,2\n",
            "price.csv: field 'series.1.from_s': got '0 after 0', expected strictly increasing times",
        ),
        (
            "from_s,price_per_kwh\n5,1\n",
            "price.csv: field 'series': expected to begin at 0 and end before repeat_s = 86400",
        ),
    ],
)
def test_bad_price_series(write, text, line):
    if text is not None:
        write("price.csv", text)
    assert fails(write, GOOD + SERIES) == line


def test_write_atomic(tmp_path):
    path = tmp_path / "a.txt"
    write_atomic(path, "one")
    write_atomic(path, b"two")
    assert path.read_text() == "two"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]
    (tmp_path / "plain.txt").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain.txt").stat().st_mode)


def test_write_atomic_keeps_the_old_file_when_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    write_atomic(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"a\.txt: got 'No space left on device', expected a file that can be written"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_write_atomic_into_a_missing_folder(tmp_path):
    with pytest.raises(InputError, match="expected a file that can be written"):
        write_atomic(tmp_path / "no" / "a.txt", "x")


@pytest.mark.parametrize("text", ["name: {}\n", '{{"name": {}}}'])
def test_a_number_of_thousands_of_digits_is_said_without_python(write, text):
    line = fails(write, text.format("9" * 5000))
    assert line == "s.yaml: got 'a number of thousands of digits', expected valid YAML or JSON"
