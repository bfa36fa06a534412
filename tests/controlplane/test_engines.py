"""What a job really runs, and where it works."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("sqlalchemy")

from commonwatt.controlplane.engines import work_of
from commonwatt.engines.reports import Reports
from commonwatt.model.job_file import JobFile
from commonwatt.model.live import LiveSpec
from tests.cli.console import run, write

NODE = {"name": "n", "gpu_type": "V100", "gpus": 2, "idle_w": 100, "gpu_w": 50}


@pytest.mark.parametrize(
    ("own", "of_the_site", "works_in"),
    [("/own", "/site", "/own"), (None, "/site", "/site"), (None, None, "jobs/7")],
)
def test_a_job_works_in_its_own_folder_or_the_sites_or_one_that_all_nodes_see(tmp_path, own, of_the_site, works_in):
    row = SimpleNamespace(file=JobFile(name="j", command=("true",), folder=own), submit_s=1.0, tenant="t")
    config = SimpleNamespace(live=LiveSpec(folder=of_the_site), engine="local")
    reports = Reports(tmp_path / "jobs", work_of(config, SimpleNamespace(jobs_by_id=lambda _: [row])))
    work, places, _ = reports.work(7, "7-j", 1)
    assert work.folder == tmp_path / works_in  # joined to an absolute path, it is that path
    assert Path(places["own"]).is_dir()


def test_the_folder_of_a_site_is_absolute(tmp_path):
    """On a node, a relative one would be anywhere."""
    live = {"folder": "here"}
    done = run("check", write(tmp_path / "live.yaml", {"engine": "slurm", "nodes": [NODE], "live": live}))
    assert done.code == 2
    assert "field 'live.folder': got 'here', expected an absolute path" in done.err
