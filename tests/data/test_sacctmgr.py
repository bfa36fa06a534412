"""What ``sacctmgr show qos`` and ``show associations`` print."""

from __future__ import annotations

import pytest

from commonwatt.data.sacctmgr import read_associations, read_qos, spelt
from commonwatt.model.accounting import Association, Qos
from commonwatt.model.errors import InputError

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
    assert [qos.max_gpus_of for qos in found.qos] == [{"a100": 8}, {}]
    over_time, preempting = found.notes
    assert over_time.endswith("of QOS urgent (GrpTRESMins)")
    assert preempting == "jobs of QOS normal are requeued when they are preempted: see PreemptMode of the cluster"


def test_who_preempts_whom(write):
    text = table(
        {"Name": "low", "Priority": "0", "PreemptMode": "requeue", "GraceTime": "00:02:00",
         "PreemptExemptTime": "1-00:10:00"},
        {"Name": "cheap", "Priority": "0", "PreemptMode": "cancel", "GraceTime": "00:00:00"},
        {"Name": "held", "Priority": "0", "PreemptMode": "suspend,gang", "PreemptExemptTime": "-1"},
        {"Name": "high", "Priority": "9", "Preempt": "low,cheap,held,gone", "PreemptMode": "cluster"},
        {"Name": "top", "Priority": "10", "Preempt": "high", "PreemptMode": "OFF"},
    )  # fmt: skip
    found = read_qos(write("qos.txt", text))
    assert found.qos == (
        Qos(name="low", grace_s=120, exempt_s=87_000),
        Qos(name="cheap", preempt_mode="cancel"),
        Qos(name="held", preempt_mode="off"),
        Qos(name="high", priority=9, preempts=("low", "cheap", "held")),
        Qos(name="top", priority=10, preempts=("high",)),
    )
    assert found.notes == (
        "jobs of QOS cheap wait again when they are preempted, though the cluster would cancel them",
        "jobs of QOS held are not preempted: with PreemptMode suspend they would keep their GPUs",
        "jobs of QOS high are requeued when they are preempted: see PreemptMode of the cluster",
    )


def test_the_qos_of_a_scenario(write):
    text = """
nodes: [{name: n, gpu_type: V100, gpus: 1, idle_w: 1, gpu_w: 1}]
qos: [{name: q, max_jobs: 1}]
"""
    assert read_qos(write("scenario.yaml", text)).qos == (Qos(name="q", max_jobs=1),)
    with pytest.raises(InputError, match=r"field .qos.: got .none., expected at least one"):
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
        ("Name|Priority|GraceTime\nq|0|soon\n", "line 2: field 'GraceTime': got 'soon'"),
        ("Name|Priority|PreemptMode\nq|0|ask\n", "line 2: field 'PreemptMode': got 'ask'"),
        ("Name|Priority|Preempt\np|0|q\nq|0|p\n", "field 'Preempt': got \"a circle through 'p'\""),
        ("", "qos.txt"),
    ],
)
def test_bad_input_in_one_line(write, text, said):
    with pytest.raises(InputError) as caught:
        read_qos(write("qos.txt", text))
    line = str(caught.value)
    assert said in line
    assert "\n" not in line


# As Slurm 22.05 prints it, with `tree`: limits of users and jobs (Max) are those in force, from whatever level.
TREE = """\
Cluster|Account|User|Partition|Share|Priority|GrpJobs|GrpTRES|GrpSubmit|GrpWall|GrpTRESMins|MaxJobs|MaxTRES|MaxTRESPerNode|MaxSubmit|MaxWall|MaxTRESMins|QOS|Def QOS|GrpTRESRunMins
commonwatt|root|||1|||||||||||||normal||
commonwatt| root|root||1|||||||||||||normal||
commonwatt| lab|||10||9|||||5|gres/gpu=3|||||normal||
commonwatt|  chem|||7|||||||5|gres/gpu=3|||||normal||
commonwatt|   chem|nobody|main|parent|||||||5|gres/gpu=3|||||normal||
commonwatt|   chem|ann||3|||||||1|gres/gpu=3|||||normal||
commonwatt|  phys|||parent|||gres/gpu:v100=2,gres/gpu=3||||2|gres/gpu=3|||||normal||
commonwatt|   phys|ann||1||1|||||2|gres/gpu=3|||||normal||
"""  # noqa: E501
THREE = {"max_jobs_per_user": 5, "max_gpus_per_job": 3}
ROWS = (
    Association(account="root"),
    Association(account="root", user="root"),
    Association(account="lab", parent="root", shares=10, max_jobs=9, **THREE),
    Association(account="chem", parent="lab", shares=7, **THREE),
    Association(account="chem", user="nobody", partition="main", shares=None, **THREE),
    Association(account="chem", user="ann", shares=3, **{**THREE, "max_jobs_per_user": 1}),
    Association(account="phys", parent="lab", shares=None, max_gpus=3, max_gpus_of={"v100": 2},
                **{**THREE, "max_jobs_per_user": 2}),
    Association(account="phys", user="ann", max_jobs=1, **{**THREE, "max_jobs_per_user": 2}),
)  # fmt: skip


def test_associations_in_a_tree(write):
    found = read_associations(write("associations.txt", TREE))
    assert found.associations == ROWS
    assert found.notes == ()


def test_associations_with_the_names_of_parents(write):
    lines = [line.split("|") for line in TREE.splitlines()]
    parents = ["ParentName", *(row.parent for row in ROWS)]
    text = "\n".join(
        "|".join([*(cell.strip() for cell in line), name]) for line, name in zip(lines, parents, strict=True)
    )
    assert read_associations(write("associations.txt", text + "\n")).associations == ROWS
    some = "\n".join(line for line in text.splitlines() if not line.startswith("commonwatt|root"))
    found = read_associations(write("some.txt", some + "\n"))
    assert found.associations[0].parent == ""
    assert found.notes == ("not listed, so without limits here, are the accounts above: root",)


def test_associations_without_a_tree_have_no_accounts_in_accounts(write):
    flat = "\n".join("|".join(cell.strip() for cell in line.split("|")) for line in TREE.splitlines())
    found = read_associations(write("associations.txt", flat + "\n"))
    assert {row.account: row.parent for row in found.associations if not row.user} == {
        "root": "", "lab": "root", "chem": "root", "phys": "root",
    }  # fmt: skip
    (note,) = found.notes
    assert note.endswith("add tree")


def test_a_part_of_the_tree_of_one_account(write):
    lines = TREE.splitlines()
    part = [lines[0], *(line.replace("| ", "|", 1) for line in lines[3:])]
    found = read_associations(write("associations.txt", "\n".join(part) + "\n")).associations
    assert [row.parent for row in found if not row.user] == ["", "lab", "lab"]


def test_the_order_of_columns_and_others_do_not_matter(write):
    text = "User|Account|Share|GrpTRES|MaxJobs\n|a|2147483647|cpu=4,gres/gpu=2,gres/gpu:a100=1,mem=1G|\nann|a|2||7\n"
    assert read_associations(write("associations.txt", text)).associations == (
        Association(account="a", shares=None, max_gpus=2, max_gpus_of={"a100": 1}),
        Association(account="a", user="ann", shares=2, max_jobs_per_user=7),
    )


def test_limits_of_gpu_time_are_named(write):
    text = "Account|User|Share|GrpTRESMins|GrpTRESRunMins\na||1|gres/gpu=60|\na|ann|1||gres/gpu=5\nb||1|cpu=5|\n"
    note = read_associations(write("associations.txt", text)).notes[-1]
    assert note == "limits of GPU time are not kept, of a (GrpTRESMins), a, ann (GrpTRESRunMins)"


def test_gpu_types_are_spelt_as_the_nodes_spell_them():
    qos = [Qos(name="q", max_gpus_of={"V100": 3, "a100-sxm4-80gb": 2, "h200": 1}, max_gpus_per_user_of={"v100": 1})]
    (found,), unknown = spelt(qos, ["v100", "A100"])
    assert found == Qos(name="q", max_gpus_of={"v100": 3, "A100": 2}, max_gpus_per_user_of={"v100": 1})
    assert unknown == ("h200",)
    assert spelt(ROWS[:3], ["v100"]) == (ROWS[:3], ())


def test_the_associations_of_a_scenario(write):
    text = """
nodes: [{name: n, gpu_type: V100, gpus: 1, idle_w: 1, gpu_w: 1}]
associations: [{account: a, max_jobs: 1}]
"""
    found = read_associations(write("scenario.yaml", text))
    assert found.associations == (Association(account="a", max_jobs=1),)
    with pytest.raises(InputError, match=r"field .associations.: got .none., expected at least one"):
        read_associations(write("without.yaml", text.partition("associations")[0]))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("   Cluster    Account\n---------- ----------\n", "--parsable2 show associations tree"),
        ("Name|Priority\nnormal|0\n", "field 'Account'"),
        ("Cluster|Account|User|Partition\nc|a||\n", "columns of limits or shares"),
        ("Cluster|Account|User|Share\nc|a||1\nd|a||1\n", "line 3: field 'Cluster': got 'd', expected one cluster, c"),
        ("Account|User|Share\na||1\na||1\n", "line 3: field 'Account': got 'a'"),
        ("Account|User|Share\na|ann|1\na|ann|1\n", "line 3: field 'User': got 'ann'"),
        ("Account|User|Share\n|ann|1\n", "line 2: field 'Account': got 'nothing'"),
        ("Account|User|Share\na||-1\n", "line 2: field 'Share': got '-1'"),
        ("Account|User|GrpTRES\na||gres/gpu=x\n", "line 2: field 'GrpTRES'"),
        ("Account|User|GrpTRES\na||gres/gpu:v100=\n", "line 2: field 'GrpTRES'"),
        ("Account|User|MaxJobs\na||1.5\n", "line 2: field 'MaxJobs': got '1.5'"),
        ("Account|User|Share|ParentName\na||1|b\nb||1|a\n", "not in themselves"),
        ("", "associations.txt"),
    ],
)
def test_bad_associations_in_one_line(write, text, said):
    with pytest.raises(InputError) as caught:
        read_associations(write("associations.txt", text))
    line = str(caught.value)
    assert said in line
    assert "\n" not in line
