"""A job's command in a container: whatever it is made of, it stays arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commonwatt.engines.run_spec import Images, JobWork
from commonwatt.model.errors import EngineError, InputError
from commonwatt.model.job_file import check_image

PLACES = {"own": "/state/jobs/1", "snapshots": "/data/snap shots"}
SHOW = (sys.executable, "-c", "import json, sys; sys.stdout.write(json.dumps(sys.argv[1:]))")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (
            ("apptainer", "exec", "--nv", "--bind", "{own}", "{image}", "{command}"),
            ("apptainer", "exec", "--nv", "--bind", "/state/jobs/1", "nvcr.io/pytorch:24.01", "python", "train.py"),
        ),
        (
            ("srun", "--container-image={image}", "--container-mounts={own},{snapshots}", "{command}"),
            (
                "srun", "--container-image=nvcr.io/pytorch:24.01", "--container-mounts=/state/jobs/1,/data/snap shots",
                "python", "train.py",
            ),
        ),
        (
            ("docker", "run", "--workdir", "{folder}", "{image}", "{command}"),
            ("docker", "run", "--workdir", "/work", "nvcr.io/pytorch:24.01", "python", "train.py"),
        ),
    ],
    ids=["apptainer", "pyxis", "docker"],
)  # fmt: skip
def test_a_site_runs_images_its_own_way(template, expected):
    work = JobWork(("python", "train.py"), Path("/work"), image="nvcr.io/pytorch:24.01")
    assert Images(template).command(work, PLACES) == expected


def test_without_an_image_the_command_is_as_it_is():
    work = JobWork(("python", "{image}"), Path("/"))
    assert Images(("apptainer", "exec", "{image}", "{command}")).command(work, PLACES) == work.command


def test_an_image_where_none_can_be_run_is_an_error():
    with pytest.raises(EngineError, match="no command that runs images"):
        Images().command(JobWork(("x",), Path("/"), image="a"), PLACES)


@pytest.mark.parametrize(
    "template",
    [
        ("run", "{command}"), ("run", "{image}"), ("run", "{image}", "-c={command}"),
        ("run", "{image}", "{command}", "{command}"), ("run", "{image}", "{kommand}"), ("{image}", "{command}"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_work_is_refused_at_once(template):
    with pytest.raises(InputError, match="images"):
        Images(template)


@pytest.mark.parametrize("image", ["", "-v/:/host", "--privileged", "a b", "a\nb", "a\0b"])
def test_an_image_is_a_name_and_never_an_option(image):
    with pytest.raises(InputError, match="image"):
        check_image(image)
    with pytest.raises(EngineError):
        Images(("run", "{image}", "{command}")).command(JobWork(("x",), Path("/"), image=image), PLACES)


argument = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.slow
@given(st.lists(argument, min_size=1, max_size=5), st.sampled_from(["a;reboot", "$(id)", "`id`", "{command}", "a'b\""]))
def test_nothing_of_a_command_or_image_is_read_by_anybody_in_between(command, image):
    made = Images(("run", "--at={image}", "{command}")).command(JobWork(tuple(command), Path("/"), image=image), PLACES)
    assert made == ("run", f"--at={image}", *command)


def test_a_real_process_gets_these_arguments():
    images = Images((*SHOW, "{image}", "{command}"))
    made = images.command(JobWork(("sh", "-c", "echo 'x' > \"$HOME\"; {image}"), Path("/"), image="$(id)"), PLACES)
    said = subprocess.run(made, capture_output=True, check=True).stdout
    assert json.loads(said) == ["$(id)", "sh", "-c", "echo 'x' > \"$HOME\"; {image}"]
