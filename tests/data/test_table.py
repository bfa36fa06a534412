import gzip
import os
import time

import pytest

from commonwatt.data.table import moment_s, read_table
from commonwatt.data.text import read_text
from commonwatt.model.errors import InputError

CSV = "a,b\n1,x\n2,y\n"


def fails(call, *args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        call(*args, **kwargs)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize("zipped", [False, True])
def test_columns_and_lines(write, zipped):
    table = read_table(write("t.csv", "\n" + CSV.replace("1,x", "1, x "), zipped))
    assert table.columns == {"a": ["1", "2"], "b": ["x", "y"]}
    assert table.lines == [3, 4]
    assert table.counts("a").tolist() == [1, 2]
    assert len(table) == 2
    assert "a" in table
    assert "c" not in table


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters(write, delimiter):
    assert read_table(write("t.csv", CSV.replace(",", delimiter))).columns["b"] == ["x", "y"]


def test_byte_order_mark_and_windows_line_ends(write):
    table = read_table(write("t.csv", b"\xef\xbb\xbfa,b\r\n1,x\r\n"))
    assert table.columns == {"a": ["1"], "b": ["x"]}


def test_only_columns_kept(write):
    assert list(read_table(write("t.csv", CSV), keep=("b", "z")).columns) == ["b"]


def test_gzip_is_known_by_content(write):
    assert read_text(write("t.txt", "hello", zipped=True)) == "hello"


def test_gzip_of_several_members(write):
    assert read_text(write("t.gz", gzip.compress(b"a") + gzip.compress(b"b"))) == "ab"


def test_truncated_gzip(write):
    path = write("t.csv.gz", gzip.compress(CSV.encode() * 100)[:-20])
    assert fails(read_text, path) == f"{path}: got 'a truncated one', expected a complete gzip file"


def test_damaged_gzip(write):
    data = bytearray(gzip.compress(os.urandom(500)))
    data[200] ^= 0xFF
    path = write("t.csv.gz", bytes(data))
    assert fails(read_text, path).startswith(f"{path}: got ")
    assert "expected an intact gzip file" in fails(read_text, path)


def test_missing_folder_empty_binary(tmp_path, write):
    missing = tmp_path / "no.csv"
    assert fails(read_text, missing) == f"{missing}: expected an existing file"
    assert fails(read_text, tmp_path) == f"{tmp_path}: expected a file, not a folder"
    assert fails(read_text, "a\0b") == r"'a\x00b': expected a path without NUL characters"
    empty = write("e.csv", " \n\n")
    assert fails(read_text, empty) == f"{empty}: got 'an empty file', expected some content"
    binary = write("b.csv", b"a,b\n\xff")
    assert fails(read_text, binary) == (
        f"{binary}: field 'line 2': got 'byte 0xff at position 4', expected UTF-8 text "
        "(iconv -f LATIN1 -t UTF-8 converts Latin-1)"
    )


def test_header_without_rows(write):
    path = write("t.csv", "a,b\n")
    assert fails(read_table, path) == f"{path}: got 'none', expected at least one row below the header"


def test_ragged_row_and_duplicate_column(write):
    path = write("t.csv", "a,b\n1,2\n3\n")
    assert fails(read_table, path) == f"{path}, line 3: got '1 cell', expected 2 cells, as in the header"
    path = write("t.csv", "a,a\n1,2\n")
    assert fails(read_table, path) == f"{path}: field 'a': expected distinct column names"


def test_overlong_cell(write):
    path = write("t.csv", f"a,b\n1,{'x' * 200_000}\n")
    assert fails(read_table, path).startswith(f"{path}, line 2: got ")


def test_missing_column(write):
    path = write("t.csv", CSV)
    line = fails(read_table(path).text, "gpus")
    assert line == f"{path}: field 'gpus': expected a column of this name; the file has a, b"


@pytest.mark.parametrize(
    ("method", "cell", "expected"),
    [
        ("seconds", "-1", "a number of seconds, 0 or more"),
        ("seconds", "nan", "a number of seconds, 0 or more"),
        ("seconds", "inf", "a number of seconds, 0 or more"),
        ("seconds", "soon", "a number of seconds, 0 or more"),
        ("seconds", "", "a number of seconds, 0 or more"),
        ("numbers", "nan", "a finite number"),
        ("counts", "1.5", "a whole number, 0 or more"),
        ("counts", "-2", "a whole number, 0 or more"),
        ("counts", "1e30", "a whole number, 0 or more"),
        ("moments", "yesterday", "a moment (ISO 8601), such as 2017-10-16T08:00:00Z"),
    ],
)
def test_bad_cells(write, method, cell, expected):
    path = write("t.csv", f"a,b\n0,2017-10-16\n1,{cell}\n" if method == "moments" else f"a,b\n0,1\n1,{cell}\n")
    table = read_table(path)
    shown = cell or "nothing"
    assert fails(getattr(table, method), "b") == f"{path}, line 3: field 'b': got '{shown}', expected {expected}"


def test_blank_cells_where_they_may_be(write):
    table = read_table(write("t.csv", "a,b\n1,\n2,5\n"))
    assert table.seconds("b", blank=-7.0).tolist() == [-7.0, 5.0]


def test_moments_without_a_zone_are_utc_wherever_we_are(monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert moment_s("1970-01-02") == 86400
    finally:
        monkeypatch.undo()
        time.tzset()


def test_moments():
    assert moment_s("1970-01-02") == 86400
    assert moment_s("1970-01-01 01:00:00") == 3600
    assert moment_s("1970-01-01T01:00:00+01:00") == 0
    assert moment_s("1970-01-01T00:00:10Z") == 10
