"""What a real Slurm starts and preempts by associations and QOS, and what a replay with its own ``sacctmgr`` does."""

from __future__ import annotations

import getpass
import subprocess
import time
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("pymysql")

from commonwatt.data.sacctmgr import read_associations, read_config, read_qos, spelt
from commonwatt.data.slurm_config import SlurmPreemption, configured, preemption_of
from commonwatt.model.scenario import PolicySpec
from tests.controlplane.test_slurm_accounts import AccountedSite, started
from tests.engines.waiting import until
from tests.simulation.made import node, prepared, run
from tests.store.conftest import mariadb  # noqa: F401

pytestmark = pytest.mark.long
ME = getpass.getuser()
TYPES = {"V100": "gpu:v100", "T4": "gpu"}  # the GPU of node `spare` has no type there


class LimitedSite(AccountedSite):
    """A Slurm that enforces limits."""

    def configure(self, slurmd_timeout_s: int = 30) -> None:
        super().configure(slurmd_timeout_s)
        text = self.conf.read_text().replace("TRES=gres/gpu\n", "TRES=gres/gpu,gres/gpu:v100\n")
        self.conf.write_text(
            f"{text}AccountingStorageEnforce=limits,qos\nPreemptType=preempt/qos\nPreemptMode=REQUEUE\n"
        )


@pytest.fixture
def limited(mariadb, monkeypatch):  # noqa: F811
    for site in started(LimitedSite, mariadb, monkeypatch):
        try:
            yield site
        finally:
            emptied(site)  # else their scripts outlive the nodes


def emptied(site: LimitedSite) -> None:
    """Cancel all jobs, and wait until they are gone."""
    subprocess.run(["scancel", "--user", ME], env=site.env, check=False, timeout=60)
    until(lambda: not states(site))


def change(site: LimitedSite, *words: str) -> None:
    site.ask("sacctmgr", "-i", *words)


def submit(site: LimitedSite, account: str, qos: str = "normal", gpus: int = 1, gpu_type: str = "V100") -> str:
    where = ["--nodelist=spare"] if gpu_type == "T4" else ["--exclude=spare"]
    command = ["sbatch", "--parsable", f"--account={account}", f"--qos={qos}", f"--gres={TYPES[gpu_type]}:{gpus}"]
    return site.ask(*command, *where, "--time=60", "--output=/dev/null", "--wrap=sleep 600").strip()


def states(site: LimitedSite) -> dict[str, tuple[str, str]]:
    said = site.ask("squeue", "--noheader", "--format=%A|%T|%r").splitlines()
    return {number: (state, reason) for number, state, reason in (line.split("|") for line in said)}


def settled(site: LimitedSite) -> dict[str, tuple[str, str]]:
    """Return the states of all jobs when none has changed for a while, and each that waits has a reason."""
    last, since_s = {}, time.monotonic()

    def quiet() -> bool:
        nonlocal last, since_s
        if (now := states(site)) != last:
            last, since_s = now, time.monotonic()
        reasons = {reason for state, reason in now.values() if state == "PENDING"}
        return time.monotonic() > since_s + 2.5 and not reasons & {"None", "Priority"}

    until(quiet, 60.0)
    return last


def ours(site: LimitedSite, tmp_path: Path, jobs: list[dict], at_s: float = 0.0) -> set[str]:
    """Return the jobs that run at *at_s* in a replay under what sacctmgr prints now."""
    (tmp_path / "associations.txt").write_text(site.ask("sacctmgr", "--parsable2", "show", "associations", "tree"))
    (tmp_path / "qos.txt").write_text(site.ask("sacctmgr", "--parsable2", "show", "qos"))
    listed = [
        {
            "name": str(k), "submit_s": job.get("submit_s", 0), "tenant": job["account"], "user": ME,
            "qos": job.get("qos", "normal"), "requested_gpus": job.get("gpus", 1),
            "times_s": {job.get("gpu_type", "V100"): {job.get("gpus", 1): 600.0}},
        }
        for k, job in enumerate(jobs)
    ]  # fmt: skip
    document = {
        "workload": {"source": "jobs", "jobs": listed},
        "nodes": [node("n-1"), node("n-2"), node("spare", "T4", 1)],
        "qos": [one.model_dump() for one in spelt(read_qos(tmp_path / "qos.txt").qos, TYPES)[0]],
        "associations": [
            one.model_dump() for one in spelt(read_associations(tmp_path / "associations.txt").associations, TYPES)[0]
        ],
        "unused_nodes": {"state": None},
        "preemption": {"allowed": False},
        "policies": [{"solver": "easy"}],
    }
    _, record = run(prepared(document))
    s = record.segments
    there = (s.from_s <= at_s) & (s.to_s > at_s)
    return {record.jobs.name[j] for j in s.job[there].tolist()}


PHYS, CHEM = {"account": "phys"}, {"account": "chem"}
# What is changed, jobs in their order, and the reasons for which Slurm lets some wait.
CASES = {
    "GPUs of an account above": (
        ["account lab set GrpTRES=gres/gpu=2"], [PHYS, CHEM, PHYS], {"AssocGrpGRES"},
        ["account lab set GrpTRES=gres/gpu=-1"],
    ),
    "jobs of an account above": (
        ["account lab set GrpJobs=2", "account phys set GrpJobs=1"], [PHYS, PHYS, CHEM, CHEM], {"AssocGrpJobsLimit"},
        ["account lab set GrpJobs=-1", "account phys set GrpJobs=-1"],
    ),
    "jobs of each user, inherited from above": (
        ["account lab set MaxJobs=1"], [PHYS, PHYS, CHEM], {"AssocMaxJobsLimit"}, ["account lab set MaxJobs=-1"],
    ),
    "jobs of a user, by the nearest": (
        ["account lab set MaxJobs=1", f"user {ME} where account=phys set MaxJobs=2"], [PHYS, PHYS, PHYS, CHEM, CHEM],
        {"AssocMaxJobsLimit"}, ["account lab set MaxJobs=-1", f"user {ME} where account=phys set MaxJobs=-1"],
    ),
    "the QOS before the account, whose count goes on": (
        ["account phys set GrpJobs=2", "qos special set GrpJobs=3"],
        [{**PHYS, "qos": "special"}, {**PHYS, "qos": "special"}, {**PHYS, "qos": "special"}, PHYS, CHEM],
        {"AssocGrpJobsLimit"}, ["account phys set GrpJobs=-1", "qos special set GrpJobs=-1"],
    ),
    "another limit of the QOS does not come before it": (
        ["account phys set GrpJobs=1", "qos special set GrpTRES=gres/gpu=3"],
        [{**PHYS, "qos": "special"}, {**PHYS, "qos": "special"}, CHEM], {"AssocGrpJobsLimit"},
        ["account phys set GrpJobs=-1", "qos special set GrpTRES=gres/gpu=-1"],
    ),
    "jobs per user of the QOS before those of the user": (
        ["account phys set MaxJobs=1", "qos special set MaxJobsPerUser=2"],
        [{**PHYS, "qos": "special"}, {**PHYS, "qos": "special"}, {**PHYS, "qos": "special"}, PHYS],
        {"QOSMaxJobsPerUserLimit", "AssocMaxJobsLimit"},
        ["account phys set MaxJobs=-1", "qos special set MaxJobsPerUser=-1"],
    ),
    "GPUs of one type": (
        ["account lab set GrpTRES=gres/gpu:v100=1"], [PHYS, CHEM, {**CHEM, "gpu_type": "T4"}], {"AssocGrpGRES"},
        ["account lab set GrpTRES=gres/gpu:v100=-1"],
    ),
    "GPUs of one type, of each user of a QOS": (
        ["qos special set MaxTRESPerUser=gres/gpu:v100=2"],
        [{**PHYS, "qos": "special", "gpus": 2}, {**CHEM, "qos": "special"},
         {**CHEM, "qos": "special", "gpu_type": "T4"}, CHEM],
        {"QOSMaxGRESPerUser"}, ["qos special set MaxTRESPerUser=gres/gpu:v100=-1"],
    ),
}  # fmt: skip


def accounts(site: LimitedSite) -> None:
    change(site, "add", "account", "lab", "fairshare=10")
    for name in ("phys", "chem"):
        change(site, "add", "account", name, "parent=lab")
        change(site, "add", "user", ME, f"account={name}")


def test_the_same_jobs_start_under_the_limits_of_a_real_slurm(limited, tmp_path):
    accounts(limited)
    change(limited, "add", "qos", "special")
    change(limited, "modify", "user", ME, "set", "qos+=special")
    for name, (before, jobs, reasons, after) in CASES.items():
        for words in before:
            change(limited, "modify", *words.split())
        time.sleep(1.0)  # slurmdbd tells slurmctld
        numbers = [submit(limited, **job) for job in jobs]
        there = settled(limited)
        runs = {str(k) for k, number in enumerate(numbers) if there[number][0] == "RUNNING"}
        assert 0 < len(runs) < len(jobs), (name, there)
        assert {reason for state, reason in there.values() if state == "PENDING"} == reasons, name
        assert ours(limited, tmp_path, jobs) == runs, (name, there)
        emptied(limited)
        for words in after:
            change(limited, "modify", *words.split())
    change(limited, "modify", *["account", "phys", "set", "GrpTRES=gres/gpu:v100=1"])
    time.sleep(1.0)
    untyped = ["sbatch", "--account=phys", "--gres=gpu:1", "--exclude=spare", "--output=/dev/null", "--wrap=sleep 600"]
    for _ in range(2):  # the one rule that a replay does not follow: it holds whoever is on that type
        limited.ask(*untyped)
    assert [state for state, _ in settled(limited).values()] == ["RUNNING", "RUNNING"]
    emptied(limited)
    rows = read_associations(tmp_path / "associations.txt").associations
    assert [one.shares for one in rows if one.account == "lab"] == [10]
    (tmp_path / "config.txt").write_text(limited.ask("scontrol", "show", "config"))
    config = read_config(tmp_path / "config.txt")
    spec, notes = configured(PolicySpec(solver="fair-share"), config, tmp_path / "config.txt")
    assert (spec.fair_share_weight, spec.backfill_depth, notes) == (0, 500, ())  # priority/basic
    assert preemption_of(config, tmp_path / "config.txt") == SlurmPreemption(by_qos=True, mode="requeue", exempt_s=0.0)


def of(qos: str, gpus: int = 1, **more: object) -> dict:
    return {"account": "phys", "qos": qos, "gpus": gpus, **more}


# Jobs that run, then one that comes.
PREEMPTIONS = {
    "the place of one of its QOS": ([of("low", 2), of("low", 2)], of("high", 2)),
    "the lowest priority": ([of("middle"), of("middle"), of("low"), of("middle")], of("high")),
    "a larger one of the lowest priority": ([of("middle", 2), of("low", 2)], of("high")),
    "all of a node": ([of("normal", 2), of("low"), of("low")], of("high", 2)),
    "no room without those it may not": ([of("normal", 2), of("normal"), of("low")], of("high", 2)),
    "not by another": ([of("low", 2), of("low", 2)], of("middle")),
    "not of another": ([of("normal", 2), of("normal", 2)], of("high")),
    "not beside room": ([of("low", 2), of("low")], of("high")),
    "not before their time": ([of("young", 2), of("young", 2)], of("high")),
}


def test_the_same_jobs_are_preempted_by_a_real_slurm(limited, tmp_path):
    accounts(limited)
    for name, *fields in (
        ("low", "priority=0"), ("middle", "priority=5"), ("young", "priority=0", "preemptexempttime=10:00"),
        ("high", "priority=9", "preempt=low,middle,young"),
    ):  # fmt: skip
        change(limited, "add", "qos", name, *fields)
    change(limited, "modify", "user", ME, "set", "qos+=low,middle,young,high")
    time.sleep(1.0)
    for name, (jobs, comes) in PREEMPTIONS.items():
        numbers = []
        for job in jobs:  # each starts before the next is submitted
            numbers.append(submit(limited, **job))
            until(lambda: states(limited)[numbers[-1]][0] == "RUNNING")  # noqa: B023
        numbers.append(submit(limited, **comes))
        there = settled(limited)
        runs = {str(k) for k, number in enumerate(numbers) if there[number][0] == "RUNNING"}
        listed = [{**job, "submit_s": k} for k, job in enumerate(jobs)] + [{**comes, "submit_s": 60}]
        mine = ours(limited, tmp_path, listed, at_s=61.0)
        kinds = [[[*jobs, comes][int(k)] for k in sorted(found)] for found in (runs, mine)]
        assert kinds[0] == kinds[1], (name, there, mine)  # of those that are alike, another one may go
        emptied(limited)
