"""The profiler over a real Slurm: a job is measured on the node set aside, then works on the other."""

from __future__ import annotations

import sys
import time

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.model.job_file import JobFile
from commonwatt.store.records import RequestKind
from tests.controlplane.chaos import config_in, running, store_of
from tests.controlplane.test_profiler import TRAIN, sources
from tests.engines.slurm.conftest import running_site, site  # noqa: F401
from tests.engines.slurm.site import until

pytestmark = pytest.mark.long


def test_a_job_is_measured_on_the_node_set_aside_then_works_on_the_other(site, tmp_path):  # noqa: F811
    live = {
        "slurm": {"conf": str(site.conf), "grace_s": 5, "poll_s": 0.2, "start_s": 60},
        "profiling": {"nodes": ["n-1"], "epochs": 2, "limit_s": 60.0},
    }  # fmt: skip
    path = config_in(tmp_path, engine="slurm", live=live)
    store = store_of(path)
    store.add_tenant("a", 1.0, 0.0)
    command = (sys.executable, TRAIN, "--epochs", "4000", "--epoch-s", "0.5", "--parallel", "0.8")
    file = JobFile(name="line", command=command, epochs=4000, gpu_counts=(1, 2))
    with running(path):
        job = store.submit("a", file, time.time())[0].id
        row = until(lambda: (r := store.job(job)).nodes == ("n-2",) and r, 120.0)
        assert set(sources(row).values()) == {"measured"}
        assert row.kept_epochs >= 2
        store.ask(RequestKind.CANCEL, time.time(), job=job)
        until(lambda: store.job(job).status == "cancelled", 60.0)
