"""Demand files: what is read, what is filled, what is refused."""

import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.data.series_files import read_moment, read_series, write_series
from commonwatt.model.errors import InputError

DAY = "2024-01-01T00:0{}:00Z"


def rows(*pairs, header="time,gpus"):
    return "\n".join([header, *(f"{time},{value}" for time, value in pairs)]) + "\n"


def minutes(*values):
    return rows(*((DAY.format(i), value) for i, value in enumerate(values)))


@pytest.mark.parametrize("zipped", [False, True])
def test_a_plain_file(write, zipped):
    found = read_series(write("d.csv", minutes(1, 2.5, 3), zipped))
    assert found.series.gpus.tolist() == [1, 2.5, 3]
    assert (found.series.step_s, found.dated, found.holes) == (60.0, True, 0)
    assert found.moment(1) == "2024-01-01T00:01:00Z"


@pytest.mark.parametrize("cell", ["", "nan", "NaN", "null"])
def test_unknown_cells(write, cell):
    found = read_series(write("d.csv", minutes(1, cell, 3))).series
    assert np.isnan(found.gpus[1])
    assert found.filled().tolist() == [1, 1, 3]


def test_missing_rows_become_unknown_values(write):
    path = write("d.csv", rows((0, 1), (60, 2), (300, 3), (360, 4), header="t_s,gpus"))
    found = read_series(path)
    assert found.series.gpus[[0, 1, 5, 6]].tolist() == [1, 2, 3, 4]
    assert np.isnan(found.series.gpus[2:5]).all()
    assert (found.holes, found.dated, found.moment(6)) == (3, False, "360")


@pytest.mark.parametrize(("start", "step"), [(9_964_972, 60), (99_999_000, 1), (12_345_678.25, 0.25), (0, 0.1)])
def test_moments_tell_every_step_from_the_next_and_are_found_again(write, start, step):
    found = read_series(write("d.csv", rows(*((start + step * i, 1) for i in range(20)), header="t_s,gpus")))
    moments = [found.moment(i) for i in range(20)]
    assert [float(text) for text in moments] == pytest.approx([start + step * i for i in range(20)], rel=1e-14)
    assert [read_moment(text, found, "--at") for text in moments] == list(range(20))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (rows((0, 1), (60, 2), (120, 3), (960000, 4), header="t_s,gpus"), "at most 24 h after"),
        (rows((0, 1), (60, 2), (60, 3), header="t_s,gpus"), "each time once"),
        (rows((0, 1), (60, 2), (120, 2), (0, 3), header="t_s,gpus"), "each time once"),
        (rows((0, 1), (60, 2), (30, 3), header="t_s,gpus"), "times that rise"),
        (rows((0, 1), (60, 2), (120, 3), (150, 4), header="t_s,gpus"), "on the grid of 60 s"),
        (minutes(1, -2), "0 or more"),
        (minutes(1, "inf"), "0 or more"),
        (minutes(1, "5e301"), "at most 1,000,000,000"),
        (minutes(1, "1000000001"), "at most 1,000,000,000"),
        (minutes(1, "many"), "a demand"),
        (minutes(1), "two rows or more"),
        (minutes("", ""), "at least one known demand"),
        ("time,gpus\n", "at least one row"),
        (rows(("soon", 1), ("later", 2)), "a moment"),
        (rows((DAY.format(0), 1), ("x", 2)), "a moment"),
        (rows((0, 1), (DAY.format(1), 2)), "a number of seconds"),
        (rows((0, 1), ("inf", 2)), "a number of seconds"),
        (rows((0, 1), header="when,gpus"), "a time column"),
        (rows((0, 1), header="time,demand"), "a column of this name; the file has time, demand"),
        ("", "some content"),
    ],
)
def test_refused(write, text, said):
    with pytest.raises(InputError, match=said):
        read_series(write("d.csv", text))


def test_the_error_names_file_line_and_column(write):
    path = write("d.csv", minutes(1, -2))
    with pytest.raises(InputError) as caught:
        read_series(path)
    assert str(caught.value).startswith(f"{path}, line 3: field 'gpus': got '-2'")


def test_one_of_several_series(write):
    lines = [f"{60 * t},{name},{t + add}\n" for t in range(3) for name, add in (("a", 0), ("b", 9))]
    text = "ds,unique_id,y\n" + "".join(lines)
    path = write("long.csv", text)
    assert read_series(path, "y", where={"unique_id": "b"}).series.gpus.tolist() == [9, 10, 11]
    with pytest.raises(InputError, match="--where COLUMN=VALUE"):
        read_series(path, "y")
    with pytest.raises(InputError, match="a value that occurs"):
        read_series(path, "y", where={"unique_id": "c"})
    with pytest.raises(InputError, match="a column of this name"):
        read_series(path, "y", where={"tenant": "c"})


@pytest.mark.slow
@given(
    st.lists(st.none() | st.integers(0, 2000) | st.floats(0, 99), min_size=2, max_size=30).filter(
        lambda values: any(v is not None for v in values)
    ),
    st.booleans(),
    st.sampled_from([1.0, 60.0, 600.0]),
    st.sampled_from([".csv", ".parquet"]),
)
def test_what_is_written_is_read(tmp_path_factory, values, dated, step_s, suffix):
    path = tmp_path_factory.mktemp("series") / f"d{suffix}"
    gpus = np.array([np.nan if v is None else v for v in values], dtype=float)
    write_series(path, 1.7e9 if dated else 50.0, step_s, {"gpus": gpus, "other": gpus * 0}, dated=dated)
    found = read_series(path)
    assert np.array_equal(found.series.gpus, gpus, equal_nan=True)
    assert (found.series.start_s, found.series.step_s, found.dated) == (1.7e9 if dated else 50.0, step_s, dated)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_parquet_with_real_times(tmp_path):
    path = tmp_path / "d.parquet"
    times = pl.datetime_range(pl.datetime(2024, 1, 1), pl.datetime(2024, 1, 1, 0, 2), "1m", eager=True)
    pl.DataFrame({"ds": times.dt.replace_time_zone("Europe/Berlin"), "y": [1, None, 3]}).write_parquet(path)
    found = read_series(path, "y")
    assert found.moment(0) == "2023-12-31T23:00:00Z"
    assert np.isnan(found.series.gpus[1])


def test_parquet_that_is_none(write, tmp_path):
    with pytest.raises(InputError, match="readable Parquet"):
        read_series(write("d.parquet", "time,gpus\n"))
    with pytest.raises(InputError, match="an existing file"):
        read_series(tmp_path / "none.parquet")
    pl.DataFrame({"time": ["2024-01-01"], "y": [1]}).write_parquet(tmp_path / "d.parquet")
    with pytest.raises(InputError, match="a column of this name; the file has time, y"):
        read_series(tmp_path / "d.parquet")


def test_moments_of_a_series(write):
    file = read_series(write("d.csv", minutes(1, 2, 3)))
    assert read_moment("2024-01-01T00:00:30Z", file, "--at") == 1
    assert read_moment("2024-01-01", file, "--at") == 0
    assert read_moment("1704067260", file, "--at") == 1
    for wrong in ("2024-01-02", "2023-01-01", "noon", "nan"):
        with pytest.raises(InputError, match="a moment from 2024-01-01T00:00:00Z to 2024-01-01T00:02:00Z"):
            read_moment(wrong, file, "--at")


@pytest.mark.long
def test_a_year_of_minutes_is_read_in_little_memory(tmp_path):
    path = tmp_path / "year.csv"
    write_series(path, 1.7e9, 60.0, {"gpus": np.arange(525_600.0) % 900}, dated=True)
    code = (
        "import sys; from pathlib import Path; from commonwatt.data.series_files import read_series\n"
        "length = len(read_series(sys.argv[1]).series); status = Path('/proc/self/status').read_text()\n"
        "print(length, status.split('VmHWM:')[1].split()[0])"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    length, most_kib = map(int, done.stdout.split())
    assert length == 525_600
    assert most_kib * 1024 < 500e6
