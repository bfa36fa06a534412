"""What is drafted from a log, its nodes and its QOS."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.study_file import StudyFile
from commonwatt.report.study_folder import study_text
from commonwatt.studies.assumptions import assumptions_of
from commonwatt.studies.draft import DraftOptions, load_study
from commonwatt.studies.run import plan_study
from tests.studies.made import NODES

HEADER = "JobID|Account|User|QOS|Submit|Start|Elapsed|Timelimit|State|AllocTRES"


def write_jobs(folder: Path, days: list[int], gpu_type: str = "v100") -> Path:
    """Write a log with four jobs on each of these days of September, of two QOS."""
    rows = [HEADER]
    for day in days:
        for k in range(4):
            at = f"2026-09-{day:02}T{8 + k:02}:00:00"
            qos = ("normal", "high")[k % 2]
            tres = f"gres/gpu={1 + k},gres/gpu:{gpu_type}={1 + k}"
            rows.append(f"{day}{k}|team|ann|{qos}|{at}|{at}|00:30:00|02:00:00|COMPLETED|{tres}")
    (folder / "jobs.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "nodes.txt").write_text(NODES, encoding="utf-8")
    return folder / "jobs.txt"


def drafted(log: Path, **wishes: object) -> StudyFile:
    return load_study(log, DraftOptions(nodes=log.parent / "nodes.txt", **wishes))[0]


@pytest.mark.slow
def test_weeks_before_one_without_submissions_are_left_out(tmp_path):
    whole = drafted(write_jobs(tmp_path, [1, 3, 8, 10, 15, 17, 23, 25]))
    assert whole.weeks == 3
    assert not any("period" in text for text in whole.assumed)
    file = drafted(write_jobs(tmp_path, [1, 3, 15, 17, 23, 25]))
    assert file.weeks == 2
    assert file.assumed[-1] == "1 period left out: nothing was submitted in one of them, or a later one"
    assert plan_study(file, Path(), 0).starts == ("2026-09-11T11:00:00Z", "2026-09-18T11:00:00Z")
    assert drafted(tmp_path / "jobs.txt", weeks=3).weeks == 3  # as wished: running it says which is empty


@pytest.mark.slow
def test_qos_are_in_force_in_every_row(tmp_path):
    log = write_jobs(tmp_path, [1, 2])
    (tmp_path / "qos.txt").write_text(
        "Name|Priority|GrpTRES|MaxJobsPU|Preempt\nnormal|0||1|\nhigh|50|gres/gpu=3||normal\n", encoding="utf-8"
    )
    file = drafted(log, qos=tmp_path / "qos.txt")
    assert [qos.name for qos in file.qos] == ["normal", "high"]
    assert file.baseline.qos_weight == 1.0
    assert any("baseline.qos_weight" in text for text in file.assumed)
    plan = plan_study(file, Path(), 0)
    assert all(len(one.scenario.qos) == 2 for one in plan.prepared.values())
    assert plan.first().treatments["asked for more than a limit of their QOS: without that limit"] == 2
    said = {one.what: one.value for one in assumptions_of(plan)}
    assert (
        said["QOS"]
        == "2, with 2 limits that every scheduler keeps; their priority counts for the scheduler of today (1)"
    )
    assert "QOS 1" in said["What the cluster runs today"]
    (tmp_path / "study.yaml").write_text(study_text(file), encoding="utf-8")
    assert load_study(tmp_path / "study.yaml", DraftOptions())[0] == file


def test_nodes_that_are_listed_twice_are_refused_by_their_file(tmp_path):
    log = write_jobs(tmp_path, [1])
    (tmp_path / "nodes.txt").write_text(NODES + NODES, encoding="utf-8")
    with pytest.raises(InputError, match=r"nodes\.txt: argument 'nodes': got 'v-1 twice', expected each node once"):
        drafted(log)


def test_a_study_without_qos_says_so(tmp_path):
    plan = plan_study(drafted(write_jobs(tmp_path, [1])), Path(), 0)
    said = {one.what: one.value for one in assumptions_of(plan)}
    assert said["QOS"] == "none: no limits of running jobs or GPUs, no priority"


def test_an_unknown_gpu_type_is_declared_in_the_study(tmp_path):
    log = write_jobs(tmp_path, [1], gpu_type="newest")
    (tmp_path / "nodes.txt").write_text(NODES.replace("v100", "newest"), encoding="utf-8")
    file = drafted(log)
    with pytest.raises(InputError, match=r"gpu_types: \{newest"):
        plan_study(file, Path(), 0)
    declared = validate(file.model_dump() | {"gpu_types": {"newest": {"speed": 1.5}}}, StudyFile)
    assert "newest" in plan_study(declared, Path(), 0).first().cluster.gpu_types


# As Slurm 22.05 prints it, but for the values.
CONFIG = """Configuration data as of 2026-11-29T13:20:12
PreemptMode             = REQUEUE
PreemptParameters       = (null)
PreemptType             = preempt/qos
PreemptExemptTime       = 00:05:00
PriorityDecayHalfLife   = 14-00:00:00
PriorityFavorSmall      = No
PriorityMaxAge          = 3-00:00:00
PriorityType            = priority/multifactor
PriorityWeightAge       = 1000
PriorityWeightAssoc     = 0
PriorityWeightFairShare = 10000
PriorityWeightJobSize   = 500
PriorityWeightPartition = 0
PriorityWeightQOS       = 2000
PriorityWeightTRES      = (null)
SchedulerParameters     = bf_interval=30,bf_max_job_test=2000,default_queue_depth=300
SchedulerType           = sched/backfill

Slurmctld(primary) at vm is UP
"""
QOS_TABLE = "Name|Priority|PreemptMode|PreemptExemptTime|Preempt\nnormal|0|cluster||\nhigh|50|cluster||normal\n"


def configured(tmp_path: Path, *changes: tuple[str, str]) -> StudyFile:
    log, text = write_jobs(tmp_path, [1]), CONFIG
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "config.txt").write_text(text, encoding="utf-8")
    (tmp_path / "qos.txt").write_text(QOS_TABLE, encoding="utf-8")
    return drafted(log, priority=tmp_path / "config.txt", qos=tmp_path / "qos.txt")


def test_the_scheduler_of_today_has_the_weights_of_the_site(tmp_path):
    file = configured(tmp_path)
    spec = file.baseline
    assert (spec.solver, spec.label) == ("fair-share", "as today")
    assert (spec.fair_share_weight, spec.size_weight, spec.qos_weight) == (10.0, 0.5, 2.0)
    assert (spec.half_life_s, spec.max_age_s, spec.backfill_depth) == (14 * 86400, 3 * 86400, 2000)
    assert [(qos.exempt_s, qos.preempts) for qos in file.qos] == [(300, ()), (300, ("normal",))]
    assert not any("PreemptMode of the cluster" in text or "qos_weight" in text for text in file.assumed)
    assert validate(file.model_dump(), StudyFile) == file


def test_a_site_without_age_or_without_weights(tmp_path):
    spec = configured(tmp_path, ("Age       = 1000", "Age       = 0")).baseline
    assert (spec.fair_share_weight, spec.qos_weight) == pytest.approx((20e6, 4e6))  # age decides between equals only
    spec = configured(tmp_path, ("priority/multifactor", "priority/basic")).baseline
    assert (spec.fair_share_weight, spec.size_weight, spec.qos_weight) == (0, 0, 0)  # order of arrival
    weights = {"WeightAge      ": 1000, "FairShare": 10000, "JobSize  ": 500, "WeightQOS      ": 2000}
    lines = [line for line in CONFIG.splitlines() if not line.startswith("Priority") or "Type" in line]
    basic = "\n".join(lines).replace("priority/multifactor", "priority/basic")  # as Slurm prints it then
    assert configured(tmp_path, (CONFIG, basic)).baseline.fair_share_weight == 0
    nothing = [(f"{key} = {value}\n", f"{key} = 0\n") for key, value in weights.items()]
    spec = configured(tmp_path, *nothing, ("HalfLife   = 14-00:00:00", "HalfLife   = 00:00:00")).baseline
    assert (spec.fair_share_weight, spec.size_weight, spec.qos_weight) == (0, 0, 0)
    assert spec.half_life_s > 1e9


def test_what_of_the_configuration_is_not_modelled_is_said(tmp_path):
    file = configured(
        tmp_path, ("FavorSmall      = No", "FavorSmall      = Yes"), ("Partition = 0", "Partition = 7"),
        ("sched/backfill", "sched/builtin"), ("bf_interval=30", "preempt_youngest_first"),
    )  # fmt: skip
    said = "\n".join(file.assumed)
    assert file.baseline.size_weight == 0
    for part in ("PriorityFavorSmall", "PriorityWeightPartition", "sched/builtin", "youngest"):
        assert part in said


@pytest.mark.parametrize(
    ("change", "mode", "preempts"),
    [
        (("preempt/qos", "preempt/none"), "requeue", ()),
        (("= REQUEUE", "= CANCEL"), "cancel", ("normal",)),
        (("= REQUEUE", "= SUSPEND,GANG"), "off", ("normal",)),
        (("= REQUEUE", "= OFF"), "requeue", ()),
    ],
)
def test_who_may_preempt_by_the_configuration(tmp_path, change, mode, preempts):
    file = configured(tmp_path, change)
    assert file.qos[1].preempts == preempts
    assert not preempts or file.qos[0].preempt_mode == mode
    value = next(one.value for one in assumptions_of(plan_study(file, Path(), 0)) if one.what == "Running jobs")
    assert ("never stopped" in value) == (not preempts or mode == "off")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "PriorityType ",
            "Type ",
            "field 'PriorityType': got 'none', expected this setting; run: scontrol show config",
        ),
        ("PriorityWeightAge ", "WeightAge ", "field 'PriorityWeightAge': got 'none', expected this setting"),
        ("= 10000", "= many", "field 'PriorityWeightFairShare': got 'many'"),
        ("14-00:00:00", "long", "field 'PriorityDecayHalfLife': got 'long'"),
        ("00:05:00", "soon", "field 'PreemptExemptTime': got 'soon'"),
    ],
)
def test_a_bad_configuration_in_one_line(tmp_path, old, new, said):
    with pytest.raises(InputError) as caught:
        configured(tmp_path, (old, new))
    assert said in str(caught.value)
    assert "config.txt" in str(caught.value)


@pytest.mark.slow
def test_associations_are_in_force_in_every_row(tmp_path):
    log = write_jobs(tmp_path, [1, 2])
    (tmp_path / "associations.txt").write_text(
        "Account|User|Share|GrpJobs|GrpTRES|MaxJobs\nroot||1|||\n root|root|1|||\n"
        " team||20|2|gres/gpu=6,gres/gpu:v100=3|1\n  team|ann|1|||\n other||5||gres/gpu:h200=1|\n", encoding="utf-8",
    )  # fmt: skip
    file = drafted(log, associations=tmp_path / "associations.txt")
    assert [one.account for one in file.associations if not one.user] == ["root", "team", "other"]
    assert file.associations[2].max_gpus_of == {"V100": 3}
    assert any("h200" in text for text in file.assumed)
    plan = plan_study(file, Path(), 0)
    assert all(len(one.scenario.associations) == 5 for one in plan.prepared.values())
    assert plan.first().table.user  # the log has no limits of QOS, but of users
    said = {one.what: one.value for one in assumptions_of(plan)}
    assert said["Accounts and users"].startswith("3 accounts and 2 users in them, 1 with limits")
    (tmp_path / "study.yaml").write_text(study_text(file), encoding="utf-8")
    assert load_study(tmp_path / "study.yaml", DraftOptions())[0] == file
