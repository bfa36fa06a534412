import pytest

from commonwatt.data.catalog import CATALOG, check
from commonwatt.data.readers import READERS
from commonwatt.model.errors import InputError


def test_the_catalogue():
    names = [entry.name for entry in CATALOG]
    assert len(set(names)) == len(names)
    assert set(names) <= {*READERS, "gavel", "zeus"}
    for entry in CATALOG:
        assert entry.url.startswith("https://github.com/")
        assert entry.what
        assert entry.files
        assert entry.licence


def test_found(no_traces, monkeypatch, tmp_path):
    assert [entry.found() for entry in CATALOG] == [None] * len(CATALOG)
    (tmp_path / "philly_jobs.csv.gz").write_text("x")
    monkeypatch.setenv("COMMONWATT_DATA", str(tmp_path))
    assert [entry.name for entry in CATALOG if entry.found()] == ["philly"]


def test_check_of_a_log(write):
    text = (
        "submit_s,duration_s,gpus,gpu_type,tenant\n2020-01-01,3600,2,v100,a\n2020-01-02,1800,4,,b\n2020-01-02,0,1,,b\n"
    )
    path = write("jobs.csv", text)
    result = check(path, "csv")
    assert result.model_dump() == {
        "file": str(path), "format": "csv", "rows": 2, "first": "2020-01-01T00:00:00Z", "last": "2020-01-02T00:00:00Z",
        "span_days": 1.0, "gpu_hours": 4.0, "largest_job": 4, "tenants": 2, "still_running": 0,
        "left_out": {"without run time": 1}, "gpu_types": ("v100",),
    }  # fmt: skip


def test_check_of_profiles(write):
    head = "model,batch_size,gpu_type,num_gpus,consolidated,steps_per_s,samples_per_s\n"
    result = check(write("g.csv", head + "LM,5,k80,1,1,1,5\nLM,10,v100,1,1,1,10\n"), "gavel")
    assert (result.rows, result.gpu_types, result.tenants) == (2, ("K80", "V100"), None)
    head = "gpu_type,dataset,model,batch_size,optimizer,power_limit_w,time_per_epoch_s,average_power_w\n"
    result = check(write("z.csv", head + "A40,d,m,8,adam,300,1,2\n"), "zeus")
    assert (result.rows, result.gpu_types) == (1, ("A40",))


def test_check_of_the_wrong_thing(write):
    path = write("jobs.csv", "a,b\n1,2\n")
    with pytest.raises(InputError) as caught:
        check(path, "philly")
    assert str(caught.value) == f"{path}: field 'submit_time': expected a column of this name; the file has a, b"
    with pytest.raises(InputError, match=r"field 'source': got 'x', expected one of philly, alibaba, .*, gavel, zeus"):
        check(path, "x")


@pytest.mark.data
def test_check_of_what_is_here(traces):
    found = {entry.name: check(entry.found(), entry.name) for entry in CATALOG if entry.found()}
    assert {name: result.rows for name, result in found.items()} == {
        "philly": 67_905, "alibaba": 3_986, "gavel": 26, "zeus": 74,
    }  # fmt: skip
