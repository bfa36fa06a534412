"""What ``sacctmgr show qos`` prints."""

from __future__ import annotations

import pytest

from commonwatt.data.qos import read_qos
from commonwatt.model.errors import InputError
from commonwatt.model.jobs import Qos

COLUMNS = [
    "Name", "Priority", "GraceTime", "Preempt", "PreemptExemptTime", "PreemptMode", "Flags", "UsageThres",
    "UsageFactor", "GrpTRES", "GrpTRESMins", "GrpTRESRunMins", "GrpJobs", "GrpSubmit", "GrpWall", "MaxTRES",
    "MaxTRESPerNode", "MaxTRESMins", "MaxWall", "MaxTRESPU", "MaxJobsPU", "MaxSubmitPU", "MaxTRESPA",
    "MaxTRESRunMinsPA", "MaxTRESRunMinsPU", "MaxJobsPA", "MaxSubmitPA", "MinTRES",
]  # fmt: skip


def table(*rows: dict[str, str], columns: list[str] | None = None) -> str:
    names = columns or COLUMNS
    return "\n".join(["|".join(names), *("|".join(row.get(name, "") for name in names) for row in rows)]) + "\n"


def test_limits_of_jobs_and_gpus(write):
    text = table(
        {"Name": "normal", "Priority": "0", "MaxJobsPU": "8", "MaxTRESPU": "cpu=64,gres/gpu=4,mem=1T"},
        {"Name": "large", "Priority": "50", "GrpTRES": "gres/gpu=64", "GrpJobs": "2", "MaxTRESPA": "gres/gpu=16"},
        {"Name": "cpu", "Priority": "10", "GrpTRES": "cpu=100", "MaxJobsPA": "3"},
    )
    found = read_qos(write("qos.txt", text))
    assert found.qos == (
        Qos(name="normal", max_jobs_per_user=8, max_gpus_per_user=4),
        Qos(name="large", priority=50, max_gpus=64, max_jobs=2, max_gpus_per_account=16),
        Qos(name="cpu", priority=10, max_jobs_per_account=3),
    )
    assert found.notes == ()


def test_older_and_chosen_columns_and_a_bar_at_the_end(write):
    columns = ["Name", "Priority", "MaxTRESPerUser", "MaxJobsPerUser", ""]
    text = table({"Name": "q", "Priority": "1", "MaxTRESPerUser": "gres/gpu=2", "MaxJobsPerUser": "1"}, columns=columns)
    assert read_qos(write("qos.txt", text)).qos == (
        Qos(name="q", priority=1, max_gpus_per_user=2, max_jobs_per_user=1),
    )


def test_what_is_not_modelled_is_said(write):
    text = table(
        {"Name": "normal", "Priority": "0", "GrpTRES": "gres/gpu:a100=8"},
        {"Name": "urgent", "Priority": "9", "Preempt": "normal", "GrpTRESMins": "gres/gpu=6000"},
    )
    found = read_qos(write("qos.txt", text))
    assert [qos.max_gpus for qos in found.qos] == [None, None]
    typed, over_time, preempting = found.notes
    assert typed.endswith("of QOS normal")
    assert over_time.endswith("of QOS urgent (GrpTRESMins)")
    assert preempting.endswith("urgent")


def test_the_qos_of_a_scenario(write):
    text = """
nodes: [{name: n, gpu_type: V100, gpus: 1, idle_w: 1, gpu_w: 1}]
qos: [{name: q, max_jobs: 1}]
"""
    assert read_qos(write("scenario.yaml", text)).qos == (Qos(name="q", max_jobs=1),)
    with pytest.raises(InputError, match="at least one QOS"):
        read_qos(write("without.yaml", text.partition("qos")[0]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("      Name   Priority\n---------- ----------\n    normal          0\n", "--parsable2 show qos"),
        ("JobID|State\n1|COMPLETED\n", "field 'Name'"),
        ("Name|Priority\nnormal|high\n", "line 2: field 'Priority': got 'high'"),
        ("Name|Priority\nnormal|-1\n", "got '-1'"),
        ("Name|Priority|GrpTRES\nq|0|gres/gpu=many\n", "field 'GrpTRES'"),
        ("Name|Priority\nq|0\nq|1\n", "line 3: field 'Name'"),
        ("Name|Priority\n|0\n", "field 'Name'"),
        ("", "qos.txt"),
    ],
)
def test_bad_input_in_one_line(write, text, said):
    with pytest.raises(InputError) as caught:
        read_qos(write("qos.txt", text))
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
