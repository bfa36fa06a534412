"""One Slurm for all tests of a process, put in order between them."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from commonwatt.engines.slurm.commands import Slurm
from commonwatt.engines.slurm.settings import SlurmSettings
from tests.machine import lacking

from .site import Site, missing

SETTINGS = {"python": sys.executable, "grace_s": 3.0, "lag_s": 1.0, "look_s": 0.2, "runner_look_s": 0.2}


def started(kind=Site):
    """A Slurm of a kind, stopped in the end."""
    if reason := missing():
        lacking("slurm", reason)
    with tempfile.TemporaryDirectory(prefix="slurm", ignore_cleanup_errors=True) as folder:  # of a short name: sockets
        site = kind(Path(folder))
        try:
            site.start()
            yield site
        finally:
            site.stop()


@pytest.fixture(scope="session")
def running_site():
    yield from started()


@pytest.fixture
def site(running_site, monkeypatch):
    monkeypatch.setenv("PATH", running_site.env["PATH"])
    yield running_site
    running_site.settle()


@pytest.fixture
def slurm(site):
    return Slurm(site.conf)


@pytest.fixture
def settings():
    return SlurmSettings(**SETTINGS)
