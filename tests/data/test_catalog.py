import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.catalog import CATALOG, FORMATS, guess_format
from commonwatt.data.check import FORMAT_NAMES, check
from commonwatt.data.demand import usage
from commonwatt.data.log import JobLog
from commonwatt.data.readers import READERS
from commonwatt.data.table import read_table
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError


def test_the_catalogue():
    names = [entry.name for entry in CATALOG]
    assert len(set(names)) == len(names)
    assert {*names, *FORMATS} == {*READERS, "gavel", "zeus"} == set(FORMAT_NAMES)
    for entry in CATALOG:
        assert entry.url.startswith("https://github.com/")
        assert entry.what
        assert entry.files
        assert entry.licence
        assert entry.kind == ("job log" if entry.name in READERS else "profiles")


def test_found(no_traces, monkeypatch, tmp_path):
    assert [entry.local_path() for entry in CATALOG] == [None] * len(CATALOG)
    (tmp_path / "philly_jobs.csv.gz").write_text("x")
    monkeypatch.setenv("COMMONWATT_DATA", str(tmp_path))
    assert [entry.name for entry in CATALOG if entry.local_path()] == ["philly"]


def test_check_of_a_log(write):
    text = (
        "submit_s,duration_s,gpus,gpu_type,tenant\n2020-01-01,3600,2,v100,a\n2020-01-02,1800,4,,b\n2020-01-02,0,1,,b\n"
    )
    path = write("jobs.csv", text)
    result = check(path, "csv").result
    assert (result.file, result.format, result.rows, result.gpu_types) == (str(path), "csv", 2, ("v100",))
    log = result.log
    assert (log.first, log.last, log.span_days) == ("2020-01-01T00:00:00Z", "2020-01-02T00:00:00Z", 1.0)
    assert (log.gpu_hours, log.gpu_hours_per_day, log.tenants, log.still_running) == (4.0, 4.0, 2, 0)
    assert log.left_out == {"without run time": 1}
    assert [(r.value, r.jobs, r.gpu_hours) for r in log.by_gpu_type] == [("", 1, 2.0), ("v100", 1, 2.0)]
    assert (log.peak_gpus, log.peak_at) == (4, "2020-01-02T00:00:00Z")
    assert (log.mean_gpus, log.p95_gpus) == (pytest.approx(2 / 24), 0)
    assert "path: " in log.workload


def test_one_job(write):
    log = check(write("jobs.csv", "submit_s,duration_s,gpus\n5,10,3\n"), None).result.log
    assert (log.gpu_hours_per_day, log.mean_gpus, log.p95_gpus, log.peak_gpus) == (None, None, 3, 3)
    assert (log.median_run_s, log.p95_run_s, log.first) == (10, 10, "5 s")


def test_starts_count_where_the_log_has_them(write):
    line = "{} {} {} 10 2 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n"
    log = check(write("a.swf", line.format(1, 0, 100) + line.format(2, 5, 200)), None).result.log
    assert (log.in_use_from, log.median_wait_s, log.peak_gpus) == ("starts", 150, 2)


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 30), st.integers(1, 8)), min_size=1, max_size=30))
def test_gpus_in_use_by_counting(jobs):
    submit, run, gpus = (np.array(column, dtype=float) for column in zip(*jobs, strict=True))
    names = [str(i) for i in range(len(jobs))]
    log = JobLog.of("x", job=names, tenant=names, submit_s=submit, duration_s=run, gpus=gpus)
    held = usage(log)
    seconds, counts = held.within(0.0, 100.0)
    assert seconds.sum() == 100
    assert seconds @ counts == run @ gpus
    for moment in range(81):
        by_hand = sum(g for s, d, g in jobs if s <= moment < s + d)
        at = int(np.searchsorted(held.time_s, moment, side="right"))
        assert (held.gpus[at - 1] if at else 0) == by_hand
    assert held.gpus[-1] == 0


def test_check_of_profiles(write):
    head = "model,batch_size,gpu_type,num_gpus,consolidated,steps_per_s,samples_per_s\n"
    result = check(write("g.csv", head + "LM,5,k80,1,1,1,5\nLM,10,v100,1,1,1,10\n"), "gavel").result
    assert (result.rows, result.gpu_types, result.log) == (2, ("K80", "V100"), None)
    head = "gpu_type,dataset,model,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_power_w\n"
    result = check(write("z.csv", head + "A40,d,m,8,adam,300,1,2\n"), "zeus").result
    assert (result.rows, result.gpu_types) == (1, ("A40",))


def test_a_table_with_other_columns_is_told_the_columns(write):
    with pytest.raises(InputError) as caught:
        guess_format(write("jobs.csv", "job,tenant,submit,duration,gpus\n1,a,0,10,1\n"))
    assert (caught.value.field, caught.value.value) == ("columns", "job,tenant,submit,duration,gpus")
    assert "gpus, and submit_s and duration_s" in caught.value.expected
    assert "--column" in caught.value.expected


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("a,b\nü,1\n".encode("latin-1"), "-f LATIN1"), ("a,b\n".encode("utf-16"), "-f UTF-16"),
        (b"\x00\x9f\x03\x92", "expected UTF-8 text"),
    ],
)  # fmt: skip
def test_text_that_is_not_utf_8_is_told_what_converts_it(tmp_path, data, said):
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(InputError, match=said) as caught:
        read_text(tmp_path / "x.csv")
    assert ("iconv" in str(caught.value)) == said.startswith("-f")


def test_what_is_taken_otherwise_than_logged_is_counted(write):
    head = "job,tenant,submit_s,start_s,end_s,gpus\n"
    found = check(write("jobs.csv", head + "a,x,,,500,1\nb,x,100,100,900,1\n"), "csv").result.log
    assert found is not None
    assert list(found.treated.values()) == [1]


def test_check_of_the_wrong_thing(write):
    path = write("jobs.csv", "a,b\n1,2\n")
    with pytest.raises(InputError) as caught:
        check(path, "philly")
    assert str(caught.value) == f"{path}: field 'submit_time': expected a column of this name; the file has a, b"
    with pytest.raises(InputError, match=r"argument 'source': got 'x', expected one of philly, alibaba, .*, zeus"):
        check(path, "x")


@pytest.mark.slow
@pytest.mark.data
def test_check_of_what_is_here(traces):
    found = {entry.name: check(entry.local_path(), entry.name).result for entry in CATALOG if entry.local_path()}
    assert {name: result.rows for name, result in found.items()} == {
        "philly": 67_905, "alibaba": 3_986, "gavel": 26, "zeus": 74,
    }  # fmt: skip


DEMAND = (
    '{"version": "0.1.0", "seed": 0, "input_digest": "ab", "source": "generated", "out": "d.csv", "step_s": 60, '
    '"first": null, "last": null, "values": 2, "unknown": 0, "counted_from": null, "mean_gpus": 1, "most_gpus": 2, '
    '"mean_wanted_gpus": null, "most_wanted_gpus": null}'
)


def test_a_result_where_a_log_is_read_says_what_it_is(write):
    with pytest.raises(
        InputError, match=r"expected a job log; this is the result of `commonwatt forecast demand`: use"
    ):
        guess_format(write("demand.json", DEMAND))


def test_a_result_where_a_table_is_read_says_what_it_is(write):
    with pytest.raises(InputError, match=r"expected a table with a header line; this is the result of `commonwatt f"):
        read_table(write("demand.json", DEMAND))


@pytest.mark.parametrize("text", ['{"a": 1}', '{"a": 1', "{" * 10_000])
def test_a_document_that_is_no_table_is_refused(text, write):
    with pytest.raises(InputError, match="got 'a JSON document', expected a table with a header line"):
        read_table(write("any.json", text))


def test_jobs_alone_are_slurms(write):
    assert guess_format(write("jobs.json", '{"jobs": []}')) == "slurm"
