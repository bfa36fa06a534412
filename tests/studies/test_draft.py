"""What is drafted from a log, its nodes and its QOS."""

from __future__ import annotations

from pathlib import Path

import pytest

from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.study_file import StudyFile
from commonwatt.report.study_folder import study_text
from commonwatt.studies.assumptions import assumptions_of
from commonwatt.studies.draft import Wishes, load_study
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
    return load_study(log, Wishes(nodes=log.parent / "nodes.txt", **wishes))[0]


def test_weeks_before_one_without_submissions_are_left_out(tmp_path):
    whole = drafted(write_jobs(tmp_path, [1, 3, 8, 10, 15, 17, 23, 25]))
    assert whole.weeks == 3
    assert not any("period" in text for text in whole.assumed)
    file = drafted(write_jobs(tmp_path, [1, 3, 15, 17, 23, 25]))
    assert file.weeks == 2
    assert file.assumed[-1] == "1 period left out: nothing was submitted in one of them, or a later one"
    assert plan_study(file, Path(), 0).starts == ("2026-09-11T11:00:00Z", "2026-09-18T11:00:00Z")
    assert drafted(tmp_path / "jobs.txt", weeks=3).weeks == 3  # as wished: running it says which is empty


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
    assert load_study(tmp_path / "study.yaml", Wishes())[0] == file


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
