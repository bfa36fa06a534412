"""Batch scripts as people have them: read as sbatch reads them, or refused by name, file and line."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commonwatt.data.batch_scripts import conditions_of, is_batch_script, read_batch_script
from commonwatt.data.files import validate
from commonwatt.model.errors import InputError
from commonwatt.model.job_file import JobFile

NOW = datetime(2026, 11, 25, 14, 30, tzinfo=UTC)

SCRIPT = """#!/bin/bash
#SBATCH -J train --nodes=2 --gpus-per-node=v100:4   # as in the manual
#SBATCH --ntasks-per-node 4 -c 8
#SBATCH --mem=64G --qos high
# a comment
#SBATCH -t 1-02:30:00 -o logs/%x-%j.out -e "my errors/%j"
##SBATCH --exclusive
#SBATCH_NOT --foo

#SBATCH --partition=a,b -A vision -D /data --mail-type=END,FAIL
module load cuda
#SBATCH --exclusive
srun python train.py "$1"
"""


def read(text, *arguments, **options):
    folder = Path("/home/ada")
    path = read.path
    path.write_text(text)
    return read_batch_script(path, arguments, folder, NOW, {k.replace("_", "-"): v for k, v in options.items()})


@pytest.fixture(autouse=True)
def _path(tmp_path):
    read.path = tmp_path / "job.sbatch"


def job(script):
    return JobFile(**script.fields)


def lines(*options):
    return "#!/bin/sh\n" + "".join(f"#SBATCH {option}\n" for option in options) + "true\n"


def test_a_script_as_it_is():
    script = read(SCRIPT, "fast")
    made = job(script)
    assert (made.name, made.command, made.folder) == ("train", ("job.sbatch", "fast"), "/data")
    assert (made.gpus, made.gpu_type, made.nodes, made.time_limit_s) == (8, "v100", 2, 95400.0)
    assert (made.partition, script.account, script.export, script.tasks) == ("a,b", "vision", None, ())
    assert (made.batch.script, made.batch.submit_folder) == (SCRIPT, "/home/ada")
    assert (made.batch.output, made.batch.error) == ("/data/logs/%x-%j.out", "/data/my errors/%j")
    assert (made.batch.tasks_per_node, made.batch.cpus_per_task) == (4, 8)
    assert made.batch.options == ("--mem=64G", "--qos=high")
    assert [warning.partition(": ")[2] for warning in script.warnings] == [
        "line 10, --mail-type: no mail is sent without an address (--mail-user=NAME@DOMAIN)"
    ]


@pytest.mark.parametrize(
    ("options", "to", "on", "warned"),
    [
        (("--mail-type=END,FAIL", "--mail-user=ada@example.org"), "ada@example.org", ("end", "fail"), ""),
        (("--mail-user=ada@example.org", "--mail-type=ALL"), "ada@example.org",
         ("begin", "end", "fail", "requeue"), ""),
        (("--mail-user=ada@example.org",), None, ("end",), ""),  # Slurm sends none without a type
        (("--mail-type=NONE", "--mail-user=ada@example.org"), None, ("end",), ""),
        (("--mail-type=BEGIN", "--mail-user=ada"), None, ("end",), "without an address"),
        (("--mail-type=BEGIN,TIME_LIMIT_80", "--mail-user=a@b.org"), "a@b.org", ("begin",), "TIME_LIMIT_80"),
    ],
)  # fmt: skip
def test_mail(options, to, on, warned):
    script = read(lines("--gpus=1", *options))
    assert (job(script).mail_to, job(script).mail_on) == (to, on)
    assert bool(script.warnings) == bool(warned)
    assert all(warned in warning for warning in script.warnings)


def test_a_mail_type_that_is_none():
    with pytest.raises(InputError, match=r"line 3, --mail-type.*BEGIN, END, FAIL"):
        read(lines("--gpus=1", "--mail-type=SOMETIMES", "--mail-user=ada@example.org"))


def test_what_sbatch_does_by_default():
    made = job(read(lines("-G 3")))
    assert (made.name, made.gpus, made.nodes, made.folder) == ("job.sbatch", 3, 0, "/home/ada")
    assert (made.batch.output, made.batch.error, made.batch.append) == ("/home/ada/slurm-%j.out", None, False)
    assert job(read(lines("--gres=gpu"))).nodes == 1
    assert job(read(lines("--gres=gpu:a100", "-N 3"))).gpus == 3
    assert job(read(lines("-G4 -N2 -n8"))).batch.tasks_per_node == 4
    assert job(read(lines("-G1 -a 3-7:2,1"))).batch.output == "/home/ada/slurm-%A_%a.out"
    assert read(lines("-G1 --array=3-7:2,1,1")).tasks == (1, 3, 5, 7)


def test_of_a_range_of_nodes_each_number_of_them_is_a_configuration():
    made = job(read(lines("-N 2-4 --gpus-per-node=a100:4 --ntasks-per-node=4")))
    assert (made.gpus, made.gpu_counts, made.gpus_per_node, made.nodes) == (16, (8, 12, 16), 4, 0)
    assert (made.width, made.batch.tasks_per_node, made.gpu_type) == (-4, 4, "a100")
    same = job(read(lines("-N 3-3 --gres=gpu:2")))
    assert (same.gpus, same.nodes, same.gpu_counts) == (6, 3, None)


def test_an_array_says_how_many_of_its_tasks_run_at_once():
    script = read(lines("-G1 -a 0-99%4"))
    assert script.tasks == tuple(range(100))
    assert job(script).batch.array_most == 4
    assert job(read(lines("-G1 -a 0-99"))).batch.array_most is None


def test_the_command_line_comes_first():
    made = job(read(SCRIPT, gres="gpu:1", time="10", job_name="other"))
    assert (made.gpus, made.nodes, made.time_limit_s, made.name) == (2, 2, 600.0, "other")


def test_gpus_of_tasks_and_cpus_of_gpus():
    made = job(read(lines("-n 8 --gpus-per-task=v100:2 --cpus-per-gpu=6")))
    assert (made.gpus, made.gpu_type, made.nodes, made.cpus_per_gpu) == (16, "v100", 0, 6.0)
    made = job(read(lines("-N 2 --ntasks-per-node=4 --gpus-per-task=1")))
    assert (made.gpus, made.nodes, made.batch.tasks_per_node) == (8, 2, 4)
    made = job(read(lines("-N 2 --ntasks-per-node=4 --gpus-per-node=4 --gpus-per-task=1")))
    assert (made.gpus, made.nodes) == (8, 2)
    assert job(read(lines("-n 8 --gpus-per-task=2"), gpus="4")).gpus == 4


def test_only_the_number_is_to_be_printed():
    assert read(lines("-G1 --parsable")).parsable
    assert not read(lines("-G1")).parsable


def test_a_script_from_standard_input():
    script = read_batch_script(Path("-"), ("x",), Path("/home/ada"), NOW, {}, lines("-G1").encode())
    assert (job(script).name, job(script).command) == ("sbatch", ("sbatch", "x"))
    with pytest.raises(InputError, match="begins with #!"):
        read_batch_script(Path("-"), (), Path("/home/ada"), NOW, {}, b"")


def test_conditions_of_a_job_file():
    options = {
        "dependency": "afterok:12:13",
        "begin": "now+2hours",
        "partition": "a,b",
        "nodes": "2",
        "constraint": "ib",
    }
    assert conditions_of(options, NOW) == {
        "after": {12: "afterok", 13: "afterok"}, "begin": "2026-11-25T16:30:00+00:00", "partition": "a,b", "nodes": 2,
        "constraint": "ib",
    }  # fmt: skip
    assert conditions_of({}, NOW) == {}
    with pytest.raises(InputError, match="a whole number") as refused:
        conditions_of({"nodes": "2-4"}, NOW)
    assert (refused.value.file, refused.value.field) == (None, "--nodes")


def test_the_jobs_of_an_array_know_their_indices():
    script = read(lines("-G1 --array=2,5"))
    first, second = script.jobs(job(script))
    assert first(0).batch.array == (0, 2, 2, 2, 5)
    assert second(41).batch.array == (41, 5, 2, 2, 5)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("now+2hours", "2026-11-25T16:30:00+00:00"), ("now+90", "2026-11-25T14:31:30+00:00"),
        ("now+1week", "2026-12-02T14:30:00+00:00"), ("16:00", "2026-11-25T16:00:00+00:00"),
        ("09:15:30", "2026-11-26T09:15:30+00:00"), ("tomorrow", "2026-11-26T00:00:00+00:00"),
        ("midnight", "2026-11-26T00:00:00+00:00"), ("teatime", "2026-11-25T16:00:00+00:00"),
        ("2026-12-01T08:00", "2026-12-01T08:00:00+00:00"), ("2026-12-01", "2026-12-01T00:00:00+00:00"),
    ],
)  # fmt: skip
def test_times_to_begin(text, moment):
    assert job(read(lines(f"-G1 --begin={text}"))).begin == moment


def test_features_of_nodes():
    assert job(read(lines('-G1 --constraint="ib&(a100|h100)"'))).constraint == "ib&(a100|h100)"
    assert job(read(lines("-G1 -C [rack1|rack2]"))).constraint == "[rack1|rack2]"
    assert job(read(lines("-G1"))).constraint == ""


def test_dependencies():
    found = job(read(lines("-G1 -d afterok:12:13,afterany:4")))
    assert found.after == {12: "afterok", 13: "afterok", 4: "afterany"}


@pytest.mark.parametrize(
    ("option", "field", "expected"),
    [
        ("--exclusive", "line 3, --exclusive", "an option that commonwatt supports"),
        ("-w node[1-3]", "line 3, --nodelist", "an option that commonwatt supports"),
        ("-G1 --constraint=ib*2", "line 3, --constraint", "no numbers of nodes"),
        ("-G1 -C a&b|c", "line 3, --constraint", "parentheses where both are"),
        ("--hold", "line 3, --hold", "an option that commonwatt supports"),
        ("--frobnicate=3", "line 3, --frobnicate", "an option that commonwatt supports"),
        ("-Z 3", "line 3", "options of sbatch"),
        ("python train.py", "line 3", "options of sbatch only"),
        ('--job-name="x', "line 3", "options of sbatch"),
        ("--time", "line 3", "options of sbatch"),
        ("--time=soon", "line 3, --time", "a time above 0"),
        ("--nodes=2-4", "line 2, --gpus", "GPUs and tasks of each node"),
        ("--nodes=4-2 --gpus-per-node=1", "line 3, --nodes", "the fewest and the most nodes"),
        ("--nodes=1-99 --gpus-per-node=1", "line 3, --nodes", "63 more at most"),
        ("--nodes=1,2", "line 3, --nodes", "a whole number"),
        ("-N3 -G4", "line 3, --gpus", "a multiple of the 3 nodes"),
        ("--gres=shard:2", "line 3, --gres", "GPUs only"),
        ("--gpus=0", "line 3, --gpus", "a number of GPUs"),
        ("--array=1-9%0", "line 3, --array", "how many tasks may run at once"),
        ("--array=1-9%", "line 3, --array", "how many tasks may run at once"),
        ("--array=9-1", "line 3, --array", "the least first"),
        ("--array=0-99999", "line 3, --array", "at most 10000"),
        ("--dependency=singleton", "line 3, --dependency", "after, afterany"),
        ("--dependency=afterok:1?afterok:2", "line 3, --dependency", "after, afterany"),
        ("--begin=someday", "line 3, --begin", "now\\+2hours"),
        ("--begin=now+999999999weeks", "line 3, --begin", "before the year 10000"),
        ("--deadline=now+99999999hours", "line 3, --deadline", "before the year 10000"),
        ("--mem='1 G'", "line 3, --mem", "expected one of"),
        ("--mem=4X", "line 3, --mem", "a size such as"),
        ("--mem=-5", "line 3, --mem", "a size such as"),
        ("--gpus-per-node=4", "line 2, --gpus", "a multiple of the 4 GPUs of each node"),
        ("--gpus-per-node=1 --gres=gpu:1", "line 3, --gpus-per-node", "not both"),
        ("--gpus-per-node=1 --nodes=3", "line 2, --gpus", "3, by --nodes"),
        ("--open-mode=both", "line 3, --open-mode", "append or truncate"),
        ("--gpus-per-task=2", "line 3, --gpus-per-task", "the number of tasks, too"),
        ("--gpus-per-task=2 -n 4", "line 3, --gpus-per-task", "0.5, by --gpus"),
        ("--cpus-per-gpu=2 -c 4", "line 3, --cpus-per-gpu", "--cpus-per-gpu or --cpus-per-task"),
        ("--cpus-per-gpu=1.5", "line 3, --cpus-per-gpu", "a whole number"),
        ("--no-requeue", "line 3, --no-requeue", "an option that commonwatt supports"),
        ("-n 3 -N 2", "line 3, --ntasks", "a multiple"),
    ],
)
def test_what_is_not_supported_is_refused_by_name_file_and_line(option, field, expected):
    text = f"#!/bin/sh\n#SBATCH --gpus=2\n#SBATCH {option}\ntrue\n"
    with pytest.raises(InputError, match=expected) as refused:
        read(text)
    assert (refused.value.file, refused.value.field) == (read.path, field)


def test_a_script_without_gpus_or_an_interpreter_is_refused(tmp_path):
    with pytest.raises(InputError, match="GPUs: --gpus, --gpus-per-node or --gres"):
        read("#!/bin/sh\ntrue\n")
    with pytest.raises(InputError, match="begins with #!"):
        read("true\n")
    (tmp_path / "x").write_bytes(b"#!/bin/sh\n\xff\n")
    with pytest.raises(InputError, match="not UTF-8"):
        read_batch_script(tmp_path / "x", (), tmp_path, NOW)
    assert is_batch_script(tmp_path / "x")
    assert not is_batch_script(tmp_path / "none")


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40), max_size=5))
def test_any_text_is_read_or_refused(options):
    with suppress(InputError):  # and no other error
        script = read("#!/bin/sh\n#SBATCH -G1\n" + "".join(f"#SBATCH {option}\n" for option in options))
        validate(script.fields, JobFile)


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_of_dos_are_refused_as_sbatch_does(end):
    with pytest.raises(InputError, match="lines that end as on Unix"):
        read(f"#!/bin/sh{end}#SBATCH -G1{end}true{end}")


def test_gpus_in_all_and_on_each_node_say_how_many_nodes():
    made = job(read(lines("-G 8 --gpus-per-node=a100:2")))
    assert (made.gpus, made.nodes, made.gpu_type) == (8, 4, "a100")
    made = job(read(lines("-G 1"), gpus="a100:8", gres="gpu:4"))
    assert (made.gpus, made.nodes, made.gpu_type) == (8, 2, "a100")
    with pytest.raises(InputError, match="GPUs of one type, v100"):
        read(lines("-G a100:8 --gpus-per-node=v100:2"))
