"""``commonwatt submit``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from commonwatt.cli.output import json_option, print_json, say
from commonwatt.cli.remote import connected, server_option, when

if TYPE_CHECKING:
    from commonwatt.model.live_results import JobDetail, SubmittedJob

__all__ = ["command"]

_COMMAND = "commonwatt.command"


class _WithCommand(click.Command):
    """Takes everything after ``--`` as the command of the job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the command aside."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[_COMMAND], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=_WithCommand, options_metavar="[OPTIONS] [-- PROGRAM ARGUMENTS...]")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("-J", "--job-name", "name", metavar="NAME", help="Name of the job.")
@click.option("-G", "--gpus", "gpus", metavar="[TYPE:]N", help="GPUs it asks for.")
@click.option("--gres", metavar="gpu[:TYPE][:N]", help="The same as Slurm's --gres.")
@click.option("--gpu-type", metavar="TYPE", help="GPU type it asks for; any if not given.")
@click.option("--gpu-counts", metavar="N,N,...", help="GPU counts it may get instead.")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Longest run time, as Slurm writes it: 02:00:00.")
@click.option("--deadline", metavar="MOMENT", help="When it should be finished (ISO 8601; UTC if no zone is given).")
@click.option("--weight", type=float, metavar="OMEGA", help="Cost of each second of lateness.")
@click.option("--epochs", type=int, help="Number of epochs.")
@click.option("-D", "--chdir", metavar="DIR", help="Working directory, absolute.")
@click.option("--export", metavar="NAME[=VALUE],...", help="Environment of the job; none of yours if not given.")
@click.option("--image", "--container-image", "image", metavar="IMAGE", help="Container image to run it in.")
@click.option("--snapshots", metavar="DIR", help="Folder its snapshots are kept in, absolute.")
@click.option("--kind", metavar="LABEL", help="Jobs of one kind are taken to scale alike.")
@click.option("--wrap", metavar="TEXT", help="Run TEXT in a shell (sh -c).")
@click.option("-A", "--account", "--tenant", "tenant", metavar="NAME", help="Tenant it is for (operators).")
@click.option("--key", metavar="TEXT", help="Submissions with the same key are one.")
@click.option("-W", "--wait", is_flag=True, help="Wait until it has ended; exit with 1 unless it completes.")
@server_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, file: Path | None, *, tenant: str | None, key: str | None, wait: bool, url: str | None,
    as_json: bool, **flags: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Submit the job of FILE (YAML or JSON), or one told in Slurm's words; these go before what FILE says.

    \b
    Examples:
      commonwatt submit job.yaml
      commonwatt submit --job-name x --gpus 2 --gpu-type V100 --time 02:00:00 --epochs 10 -- python train.py
    """
    from commonwatt.model.errors import InputError

    if key is not None and not (key.isascii() and key.isprintable() and " " not in key and 0 < len(key) <= 128):
        raise InputError("up to 128 visible characters of ASCII", field="--key", value=key)
    job = _job(file, flags, ctx.meta.get(_COMMAND))
    with connected(url) as client:
        accepted = client.submit(job, tenant=tenant, key=key)
        for warning in accepted.warnings:
            say(f"warning: {warning}")
        if not wait:
            _tell(accepted, as_json=as_json)
            return
        say(f"job {accepted.id} is accepted; waiting for its end (Ctrl-C leaves it alone)")
        ended = client.wait(accepted.id, on_away=lambda why: say(f"{why}; waiting goes on"))
    _tell_end(ended, as_json=as_json)


def _job(file: Path | None, flags: dict[str, Any], program: list[str] | None) -> Any:  # noqa: ANN401
    from commonwatt.data.files import load_yaml, validate
    from commonwatt.model.errors import InputError
    from commonwatt.model.job_file import JobFile

    fields: dict[str, Any] = {}
    if file is not None:
        fields = load_yaml(file, JobFile).model_dump(exclude_unset=True)
    told = _told(flags, program)
    if "due" in told:
        fields.pop("due_in_s", None)
    fields |= told
    if not fields:
        raise InputError("a job file, or flags and a command after `--` (see commonwatt submit --help)", field="FILE")
    if "command" in fields:
        fields.setdefault("name", _named(fields["command"]))
    return validate(fields, JobFile)


def _told(flags: dict[str, Any], program: list[str] | None) -> dict[str, Any]:
    import os

    from commonwatt.cli.submit.flags import asked_gpus, environment, seconds
    from commonwatt.model.errors import InputError

    same = ("name", "epochs", "image", "snapshots", "kind")
    told = {name: flags[name] for name in same if flags[name] is not None}
    others = {"deadline": "due", "weight": "tardiness_weight", "chdir": "folder"}
    told |= {field: flags[flag] for flag, field in others.items() if flags[flag] is not None}
    told |= asked_gpus(flags["gpus"], flags["gres"], flags["gpu_type"])
    if flags["time_limit"] is not None:
        told["time_limit_s"] = seconds(flags["time_limit"])
    if flags["gpu_counts"] is not None:
        try:
            told["gpu_counts"] = tuple(int(count) for count in flags["gpu_counts"].split(","))
        except ValueError:
            raise InputError("numbers with commas between", field="--gpu-counts", value=flags["gpu_counts"]) from None
    if flags["export"] is not None:
        told["environment"] = environment(flags["export"], os.environ)
    if flags["wrap"] is not None:
        if program:
            raise InputError("--wrap or a command after `--`, not both", field="--wrap")
        told["command"] = ("sh", "-c", flags["wrap"])
    elif program:
        told["command"] = tuple(program)
    return told


def _named(program: tuple[str, ...]) -> str:
    """Name a job that has none after its script, else its program."""
    import re

    scripts = [word for word in program if word.endswith((".py", ".sh"))]
    stem = Path(scripts[0] if scripts else program[0]).stem
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-")[:100] or "job"


def _tell(job: SubmittedJob, *, as_json: bool) -> None:
    if as_json:
        print_json(job)
    else:
        click.echo(f"Submitted job {job.id}")


def _tell_end(job: JobDetail, *, as_json: bool) -> None:
    from time import time

    if as_json:
        print_json(job)
    else:
        click.echo(f"job {job.id} ({job.name}) is {job.status}, {when(job.ended_s, time())}: {job.sentence or ''}")
    if job.status != "completed":
        sys.exit(1)
