"""Jobs of others as Slurm tells of them."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from commonwatt.engines.slurm.parsing import host_names
from commonwatt.engines.slurm.snapshot import external_jobs, parse_external_jobs

from .site import until

AT = "2026-11-22T08:01:23"


def line(number, state, asked="gres:gpu:1", *, allocated="cpu=1", per_job="N/A", **more):
    given = {
        "submit": AT, "start": "N/A", "end": "N/A", "limit": "10:00", "count": 1, "nodes": "", "reason": "None",
        "per_task": "N/A", "tasks": 1, "per_socket": "N/A", "sockets": "*:*:*", "array": number, "waiting": "N/A",
        "partition": "main",
    }  # fmt: skip
    g = given | more
    return (
        f"{number}|ada|{state}|{g['submit']}|{g['start']}|{g['end']}|{g['limit']}|{allocated}|{asked}|{per_job}|"
        f"{g['count']}|{g['nodes']}|{g['reason']}|{g['per_task']}|{g['tasks']}|{g['per_socket']}|{g['sockets']}|"
        f"{g['array']}|{g['waiting']}|{g['partition']}|"
    )


def read(*lines, own=()):
    return parse_external_jobs("\n".join(lines), own)


@pytest.mark.parametrize(
    ("text", "gpus", "gpu_type"),
    [
        (line(1, "PENDING"), 1, None),
        (line(1, "PENDING", "gres:gpu:v100:2", count=3), 6, "v100"),
        (line(1, "PENDING", "gres/gpu:a100:4"), 4, "a100"),
        (line(1, "PENDING", "gres/gpu=2"), 2, None),
        (line(1, "PENDING", "N/A", per_job="gres:gpu:8"), 8, None),
        (line(1, "PENDING", "gres:tmp:5,gres:gpu:t4:2(S:0)"), 2, "t4"),
        (line(1, "PENDING", "gres:gpu"), 1, None),
        (line(1, "PENDING", "N/A", per_job="gres:gpu:v100"), 1, "v100"),
        (line(1, "PENDING", "N/A", per_task="gres:gpu:v100:2", tasks=3), 6, "v100"),
        (line(1, "PENDING", "N/A", per_task="cpu:1,gres/gpu:1", tasks=2), 2, None),
        (line(1, "PENDING", "N/A", per_socket="gres:gpu:2", sockets="2:*:*", count=3), 12, None),
        (line(1, "PENDING", "N/A", per_socket="gres:gpu:2"), 2, None),
        (line(1, "PENDING", "gres:gpu:2", count=2, allocated="cpu=1,mem=1M,node=1,billing=1"), 2, None),  # -N1-2
        (line(1, "RUNNING", "N/A", allocated="cpu=2,gres/gpu=3,gres/gpu:t4=3", nodes="n-1"), 3, None),
    ],
)
def test_gpus_however_they_are_asked_for(text, gpus, gpu_type):
    (job,) = read(text)
    assert (job.gpus, job.gpu_type) == (gpus, gpu_type)


def test_what_is_left_out():
    assert read(line(1, "PENDING", "N/A"), line(2, "PENDING", reason="Dependency"), line(3, "RUNNING"), own={3}) == []
    assert read("", line(4, "COMPLETING"), line(5, "PENDING", submit="N/A")) == []


@pytest.mark.parametrize(
    ("waiting", "tasks"),
    [
        ("N/A", [None]),
        ("1-3", [1, 2, 3]),
        ("1,5,9", [1, 5, 9]),
        ("0-9:4,20", [0, 4, 8, 20]),
        ("4-20%3", [4]),  # two of the three that may run at once run already
        ("1,3,5,...", [1, 3, 5]),
        ("1-999999", list(range(1, 10_001))),
    ],
)
def test_waiting_tasks_of_a_job_array_are_jobs_of_their_own(waiting, tasks):
    runs = [line(number, "RUNNING", array=7, waiting=number) for number in (8, 9)]
    jobs = [job for job in read(line(7, "PENDING", waiting=waiting), *runs) if job.state == "waiting"]
    assert [(job.id, job.task) for job in jobs] == [(7, task) for task in tasks]
    assert len({job.label for job in jobs}) == len(tasks)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n-1", ("n-1",)),
        ("a,b", ("a", "b")),
        ("n-[1-2]", ("n-1", "n-2")),
        ("n[08-11,7],spare", ("n08", "n09", "n10", "n11", "n7", "spare")),
        ("r[1-2]n[01-02]", ("r1n01", "r1n02", "r2n01", "r2n02")),
    ],
)
def test_lists_of_nodes(text, names):
    assert host_names(text) == names


def test_a_list_of_nodes_nobody_could_read_hides_no_other_job():
    wrong = line(1, "RUNNING", nodes="n-[1-x]")
    assert [job.id for job in read(wrong, line(2, "RUNNING", nodes="n-[1-40000]"), line(3, "PENDING"))] == [2, 3]


def test_lists_of_nodes_are_read_as_slurm_writes_them(site):
    for text in ("n-[1-2],spare", "a[001-120,7,9-11]", "big,r[1-2]x[3-4]"):
        assert list(host_names(text)) == site.ask("scontrol", "show", "hostnames", text).split()


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


@pytest.mark.long
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
    on_one = ("--nodelist=n-1", "--wrap=true")
    of_tasks = int(site.ask(*ask, "--gpus-per-task=v100:1", "--ntasks=2", *on_one))
    of_sockets = int(site.ask(*ask, "--gpus-per-socket=1", "--sockets-per-node=2", *on_one))
    on_some = int(site.ask(*ask, "--gres=gpu:2", "--nodes=1-2", *on_one))
    array = int(site.ask(*ask, "--gres=gpu:1", "--array=2-9%3", *on_one))

    def seen():
        return {job.id: job for job in external_jobs(slurm, "commonwatt:nobody")}

    found = until(lambda: (jobs := seen()) and short in jobs and jobs[short].state == "ended" and jobs)
    assert without not in found
    assert [found[job].gpus for job in (of_tasks, of_sockets, on_some)] == [2, 2, 2]
    assert [job.label for job in external_jobs(slurm, "commonwatt:nobody") if job.id == array] == [
        f"{array}_{task}" for task in (2, 3, 4)
    ]
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


REASONS = [
    "QOSMaxGRESPerUser", "AssocGrpGRES", "PartitionTimeLimit", "Licenses", "Reservation", "JobHoldMaxRequeue",
    "launch failed requeued held",
]  # fmt: skip


@pytest.mark.parametrize("reason", REASONS)
def test_what_no_node_would_let_start_waits_for_a_limit(reason):
    assert [job.limited for job in read(line(1, "PENDING", reason=reason))] == [True]
    assert [job.limited for job in read(line(1, "PENDING", reason="Resources"))] == [False]


def test_a_job_whose_node_wakes_has_it_already():
    (job,) = read(line(1, "CONFIGURING", allocated="cpu=1,gres/gpu=2", nodes="n-1", partition="train"))
    assert (job.state, job.gpus, job.nodes, job.partition) == ("running", 2, ("n-1",), "train")


def test_a_task_of_an_array_is_known_by_its_index_before_and_after_it_starts():
    waiting = read(line(12, "PENDING", array=12, waiting="3-4"))
    (runs,) = read(line(15, "RUNNING", allocated="gres/gpu=1", nodes="n-1", array=12, waiting="3"))
    assert [job.key for job in waiting] == ["12_3", "12_4"]
    assert (runs.key, runs.label) == ("12_3", "15")


def test_all_tasks_of_an_array_are_wanted():
    assert len(read(line(12, "PENDING", array=12, waiting="0-999"))) == 1000


@pytest.mark.parametrize("text", ["garble", line(1, "PENDING").replace("|", ";"), line(1, "PENDING")[:-6], "x|" * 21])
def test_a_line_that_cannot_be_read_is_no_empty_queue(text):
    with pytest.raises(ValueError, match="a line that is no job"):
        read(line(1, "PENDING"), text)
