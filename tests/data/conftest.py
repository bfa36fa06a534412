import gzip
from pathlib import Path

import pytest

from commonwatt.data import third_party


@pytest.fixture
def write(tmp_path):
    """Write a file and return its path; gzipped on request."""

    def put(name: str, content: str | bytes, zipped: bool = False) -> Path:
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if zipped else data)
        return path

    return put


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of third-party traces; tests that use it carry the mark `data`."""
    folder = third_party.folder()
    if folder is None or not any(folder.iterdir()):
        pytest.skip(f"no folder of traces: set {third_party.VARIABLE}")
    return folder


@pytest.fixture
def no_traces(monkeypatch, tmp_path):
    """A machine without third-party data."""
    monkeypatch.setenv(third_party.VARIABLE, str(tmp_path / "nowhere"))
