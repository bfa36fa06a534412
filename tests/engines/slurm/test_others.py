"""Jobs of others as Slurm tells of them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from commonwatt.engines.slurm.others import others, others_of_text

from .site import until

AT = "2026-11-22T08:01:23"


def line(number, state, asked="gres:gpu:1", *, allocated="cpu=1,node=1", per_job="N/A", **more):
    given = {"submit": AT, "start": "N/A", "end": "N/A", "limit": "10:00", "count": 1, "nodes": "", "reason": "None"}
    g = given | more
    return (
        f"{number}|ada|{state}|{g['submit']}|{g['start']}|{g['end']}|{g['limit']}|{allocated}|{asked}|{per_job}|"
        f"{g['count']}|{g['nodes']}|{g['reason']}|"
    )


def read(*lines, own=()):
    return others_of_text("\n".join(lines), own, lambda names: names.replace("n-[1-2]", "n-1 n-2").split())


@pytest.mark.parametrize(
    ("text", "gpus", "gpu_type"),
    [
        (line(1, "PENDING"), 1, None),
        (line(1, "PENDING", "gres:gpu:v100:2", count=3), 6, "v100"),
        (line(1, "PENDING", "gres/gpu:a100:4"), 4, "a100"),
        (line(1, "PENDING", "gres/gpu=2"), 2, None),
        (line(1, "PENDING", "N/A", per_job="gres:gpu:8"), 8, None),
        (line(1, "PENDING", "gres:tmp:5,gres:gpu:t4:2(S:0)"), 2, "t4"),
        (line(1, "RUNNING", "N/A", allocated="cpu=2,gres/gpu=3,gres/gpu:t4=3", nodes="n-1"), 3, None),
    ],
)
def test_gpus_however_they_are_asked_for(text, gpus, gpu_type):
    (job,) = read(text)
    assert (job.gpus, job.gpu_type) == (gpus, gpu_type)


def test_what_is_left_out():
    assert read(line(1, "PENDING", "N/A"), line(2, "PENDING", reason="Dependency"), line(3, "RUNNING"), own={3}) == []
    assert read("", "nonsense", "x|y", line(4, "COMPLETING"), line(5, "PENDING", submit="N/A")) == []


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [("10:00", 600.0), ("1-00:00:00", 86_400.0), ("02:03:04", 7384.0), ("UNLIMITED", None), ("365-00:00:00", None)],
)
def test_time_limits(limit, seconds):
    assert read(line(1, "PENDING", limit=limit))[0].limit_s == seconds


def test_nodes_and_moments():
    ran = line(7, "COMPLETED", count=2, nodes="n-[1-2]", start=AT, end="2026-11-22T08:02:23")
    (job,) = read(ran)
    assert job.nodes == ("n-1", "n-2")
    assert job.submit_s == datetime.fromisoformat(AT).astimezone().timestamp()
    assert (job.state, job.end_s - job.start_s) == ("ended", 60.0)
    (waits,) = read(line(8, "PENDING", start="2027-01-01T00:00:00"))  # where Slurm expects it to begin
    assert (waits.state, waits.start_s, waits.end_s) == ("waiting", None, None)


def test_jobs_of_a_real_slurm(site, slurm):
    begun_s = time.time()
    ask = ("sbatch", "--parsable", "--output=/dev/null")
    runs = int(site.ask(*ask, "--gres=gpu:2", "--nodelist=n-1", "--time=10", "--wrap=sleep 600"))
    short = int(site.ask(*ask, "--gres=gpu:v100:1", "--nodelist=n-2", "--wrap=sleep 1"))
    until(
        lambda: site.ask("squeue", "--noheader", f"--jobs={short}", "--states=all", "--format=%T").strip() != "PENDING"
    )
    waits = int(site.ask(*ask, "--gpus=v100:2", "--nodelist=n-1", "--time=1-0", "--wrap=true"))
    without = int(site.ask(*ask, "--nodelist=n-1", "--wrap=true"))

    def seen():
        return {job.id: job for job in others(slurm, "commonwatt:nobody")}

    found = until(lambda: (jobs := seen()) and short in jobs and jobs[short].state == "ended" and jobs)
    assert without not in found
    assert (found[runs].state, found[runs].gpus, found[runs].nodes, found[runs].limit_s) == (
        "running",
        2,
        ("n-1",),
        600,
    )
    assert (found[waits].state, found[waits].gpus, found[waits].gpu_type) == ("waiting", 2, "v100")
    assert (found[waits].limit_s, found[waits].start_s) == (86_400.0, None)
    assert found[short].gpu_type == "v100"
    assert 1 <= found[short].end_s - found[short].start_s < 30
    assert begun_s - 2 < found[short].submit_s < time.time() + 2
