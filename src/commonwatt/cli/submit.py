"""``commonwatt submit``: a job file, or Slurm's flags, become a job of the control plane."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from commonwatt.cli.output import json_option, print_json, print_message
from commonwatt.cli.remote import connected, server_option, when
from commonwatt.model.errors import InputError
from commonwatt.model.units import slurm_time_s

if TYPE_CHECKING:
    from commonwatt.client import Client
    from commonwatt.data.batch_scripts import BatchScript
    from commonwatt.model.job_file import JobFile
    from commonwatt.model.live_results import JobDetail, SubmittedJob

__all__ = [
    "COMMAND",
    "WithCommand",
    "asked_gpus",
    "command",
    "environment",
    "gpus",
    "gres",
    "job_of",
    "script_name",
    "script_of",
    "seconds",
]

_COUNT = re.compile(r"[1-9][0-9]{0,5}")


def seconds(text: str) -> float:
    """Return a time of ``sbatch --time``: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    limit_s = slurm_time_s(text)
    if not limit_s:
        expected = "a time above 0 as Slurm writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS"
        raise InputError(expected, field="--time", value=text)
    return limit_s


def gpus(text: str, flag: str = "--gpus") -> dict[str, Any]:
    """Return what ``--gpus`` says: a count, or TYPE:COUNT."""
    kind, colon, count = text.rpartition(":")
    if not _COUNT.fullmatch(count) or (colon and not kind) or ":" in kind:
        raise InputError("a number of GPUs, or TYPE:NUMBER", field=flag, value=text)
    return {"gpus": int(count)} | ({"gpu_type": kind} if kind else {})


def gres(text: str) -> dict[str, Any]:
    """Return what ``--gres`` says: ``gpu``, ``gpu:2`` or ``gpu:v100:2``."""
    name, colon, rest = text.partition(":")
    if name != "gpu" or (colon and not rest) or "," in text:
        raise InputError("GPUs only, such as gpu:2 or gpu:v100:2", field="--gres", value=text)
    if not rest:
        return {"gpus": 1}
    return gpus(rest if _COUNT.fullmatch(rest) or ":" in rest else f"{rest}:1", "--gres")


def asked_gpus(count: str | None, resources: str | None, gpu_type: str | None) -> dict[str, Any]:
    """Return what ``--gpus``, ``--gres`` and ``--gpu-type`` say together.

    Raises ``InputError`` if they contradict each other.
    """
    declared = {"--gpu-type": {} if gpu_type is None else {"gpu_type": gpu_type}}
    declared["--gpus"] = {} if count is None else gpus(count)
    declared["--gres"] = {} if resources is None else gres(resources)
    request: dict[str, Any] = {}
    said_by: dict[str, str] = {}
    for flag, fields in declared.items():
        for field, value in fields.items():
            before = request.setdefault(field, value)
            first = said_by.setdefault(field, flag)
            if str(before).casefold() != str(value).casefold():
                what = "the number of GPUs" if field == "gpus" else "the GPU type"
                raise InputError(f"{what} as in {first} ({before}), or only one of the two", field=flag, value=value)
    return request


def environment(text: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return what ``--export`` says: NONE, or names (taken from *own*) and NAME=VALUE, with commas between."""
    if text == "NONE":
        return {}
    variables = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if name == "ALL" and not equals:
            raise InputError(
                "names, or NAME=VALUE: not everything, as that holds secrets", field="--export", value=text
            )
        if not name or (not equals and name not in own):
            raise InputError("NONE, NAME=VALUE, or names that are set here", field="--export", value=name or text)
        variables[name] = value if equals else own[name]
    return variables


COMMAND = "commonwatt.command"
"""Where click's context has what stands after ``--``."""


_AS_SBATCH = {
    "output": "-o", "error": "-e", "open-mode": "", "ntasks": "-n", "ntasks-per-node": "", "cpus-per-task": "-c",
    "gpus-per-node": "", "gpus-per-task": "", "mem": "", "mem-per-cpu": "", "tmp": "",
}  # fmt: skip
"""Options of batch scripts alone, with their letters."""


def _as_sbatch(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options of batch scripts alone."""
    for name, letter in reversed(_AS_SBATCH.items()):
        names = [letter] * bool(letter)
        function = click.option(*names, f"--{name}", metavar="...", help="As sbatch has it (batch scripts).")(function)
    return function


class WithCommand(click.Command):
    """Takes everything after ``--`` as the command of the job."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Set the command aside."""
        if "--" in args:
            at = args.index("--")
            ctx.meta[COMMAND], args = args[at + 1 :], args[:at]
        return super().parse_args(ctx, args)


@click.command(cls=WithCommand, options_metavar="[OPTIONS] [-- PROGRAM ARGUMENTS...]")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("-J", "--job-name", "name", metavar="NAME", help="Name of the job.")
@click.option("-G", "--gpus", "gpus", metavar="[TYPE:]N", help="GPUs to request.")
@click.option("--gres", metavar="gpu[:TYPE][:N]", help="The same, written as Slurm's --gres.")
@click.option("--gpu-type", metavar="TYPE", help="GPU type to request.  [default: any]")
@click.option("--gpu-counts", metavar="N,N,...", help="GPU counts that it accepts, instead of one.")
@click.option("--cpus-per-gpu", type=float, metavar="N", help="CPUs that it needs for each GPU.")
@click.option("--mem-per-gpu", metavar="SIZE", help="Memory that it needs for each GPU, such as 64G.")
@click.option("-t", "--time", "time_limit", metavar="TIME", help="Time limit, in Slurm's format: 02:00:00.")
@click.option("--deadline", metavar="MOMENT", help="Due date (ISO 8601; UTC unless it has a zone).")
@click.option("--weight", type=float, metavar="OMEGA", help="Cost of each second of lateness.")
@click.option("--epochs", type=int, help="Number of epochs.")
@click.option("-D", "--chdir", metavar="DIR", help="Working directory, absolute.")
@click.option(
    "--export",
    metavar="NAME[=VALUE],...",
    help="Environment of the job.  [default: none of yours; all of it for a batch script]",
)
@click.option("--image", "--container-image", "image", metavar="IMAGE", help="Container image to run it in.")
@click.option("--snapshots", metavar="DIR", help="Folder of its checkpoints, absolute.")
@click.option("--kind", metavar="LABEL", help="Kind of job: jobs of one kind are assumed to scale alike.")
@click.option("--profile", "profiles", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
              help="Take run times and kind from a profile (`commonwatt profile`); repeatable.")  # fmt: skip
@click.option("-d", "--dependency", metavar="WHAT:JOB,...", help="Wait for jobs: afterok:17, afterany:17:18.")
@click.option("-b", "--begin", metavar="TIME", help="Do not start before: now+2hours, 16:00, tomorrow, a date.")
@click.option("-p", "--partition", metavar="NAME,...", help="Partitions that it may run in.")
@click.option("-N", "--nodes", metavar="N", help="Nodes, with equally many GPUs each; of a batch script also 1-4.")
@click.option("-C", "--constraint", metavar="FEATURES", help="Features that its nodes must have, such as ib&a100.")
@click.option("-a", "--array", metavar="INDICES", help="One job for each index, such as 0-15 (batch scripts).")
@click.option("-q", "--qos", metavar="NAME", help="Quality of service of Slurm (batch scripts).")
@click.option("-L", "--licenses", metavar="NAME:N,...", help="Licenses that it needs from Slurm (batch scripts).")
@_as_sbatch
@click.option("--mail-user", metavar="ADDRESS", help="Address to notify, if the site sends mail.")
@click.option("--mail-type", metavar="TYPE,...", help="Mail on: BEGIN, END, FAIL, REQUEUE, ALL.  [default: END]")
@click.option("--wrap", metavar="TEXT", help="Run TEXT in a shell (sh -c).")
@click.option("-A", "--account", "--tenant", "tenant", metavar="NAME", help="Tenant to submit for (operators).")
@click.option("--parsable", is_flag=True, help="Print only the number of the job, or of the first one of an array.")
@click.option("--key", metavar="TEXT", help="Idempotency key: submissions with the same key are one job.")
@click.option("-W", "--wait", is_flag=True, help="Wait until the job ends; exit with 1 unless it completes.")
@server_option
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, file: Path | None, arguments: tuple[str, ...], *, tenant: str | None, key: str | None,
    wait: bool, parsable: bool, url: str | None, as_json: bool, **flags: Any,  # noqa: ANN401
) -> None:  # fmt: skip
    """Submit FILE: a job file (YAML or JSON), or a batch script with its ARGUMENTS, as sbatch takes it.

    FILE - is a batch script from standard input. Without FILE, options like those of sbatch describe the job. Options
    override FILE. A batch script gets your environment, as with sbatch (--export=NONE: none of it). #SBATCH options
    that commonwatt does not support are refused with file and line.

    \b
    Examples:
      commonwatt submit job.yaml
      commonwatt submit job.sbatch
      commonwatt submit --parsable - < job.sbatch
      commonwatt submit --dependency afterok:17 --partition gpu job.sbatch
      commonwatt submit --job-name x --gpus 2 --gpu-type V100 --time 02:00:00 --epochs 10 -- python train.py
    """
    from commonwatt.data.batch_scripts import is_batch_script
    from commonwatt.model.errors import InputError

    if key is not None and not (key.isascii() and key.isprintable() and " " not in key and 0 < len(key) <= 128):
        raise InputError("up to 128 visible characters of ASCII", field="--key", value=key)
    if parsable and as_json:
        raise click.UsageError("--parsable prints a bare number, not a JSON document: leave out one of the two")
    if file is not None and (str(file) == "-" or is_batch_script(file)):
        if COMMAND in ctx.meta:
            raise InputError("a batch script or a command after `--`, not both", field="FILE", value=file)
        how = _Told(as_json=as_json, parsable=parsable)
        _submit_script(file, arguments, flags, tenant=tenant, key=key, wait=wait, url=url, how=how)
        return
    if arguments:
        raise InputError("one job file; arguments are those of a batch script", field="ARGUMENTS", value=arguments[0])
    job = job_of(file, flags, ctx.meta.get(COMMAND))
    with connected(url) as client:
        accepted = client.submit(job, tenant=tenant, key=key)
        for warning in accepted.warnings:
            print_message(f"warning: {warning}")
        if parsable or not wait:
            _tell(accepted, as_json=as_json, parsable=parsable)
        if not wait:
            return
        ended = _awaited(client, accepted.id)
    _tell_end(ended, as_json=as_json, silent=parsable)


class _Told(NamedTuple):
    """How the outcome is printed."""

    as_json: bool
    parsable: bool


def _awaited(client: Client, job: int) -> JobDetail:
    print_message(f"job {job} accepted; waiting for it to end (Ctrl-C stops waiting, not the job)")
    return client.wait(job, on_away=lambda why: print_message(f"{why}; still waiting"))


_OVERRIDE = {"name": "job-name", "gpus": "gpus", "gres": "gres", "time_limit": "time", "chdir": "chdir",
             "mem_per_gpu": "mem-per-gpu", "mail_user": "mail-user", "mail_type": "mail-type", "array": "array",
             "qos": "qos", "licenses": "licenses", "cpus_per_gpu": "cpus-per-gpu",
             **{name.replace("-", "_"): name for name in _AS_SBATCH}}  # fmt: skip
_CONDITIONS = ("dependency", "begin", "partition", "nodes", "constraint")  # a job file has them, too
_NOT_OF_SCRIPTS = {"gpu_counts": "--gpu-counts", "wrap": "--wrap"}
_OF_SCRIPTS = ("array", "qos", "licenses", *(name.replace("-", "_") for name in _AS_SBATCH))


def _submit_script(
    file: Path, arguments: tuple[str, ...], flags: Mapping[str, Any], *, tenant: str | None, key: str | None,
    wait: bool, url: str | None, how: _Told,
) -> None:  # fmt: skip
    """Submit a batch script: one job, or one for each task of its array."""
    from commonwatt.model.errors import CommonwattError

    script, job = script_of(file, arguments, flags)
    for warning in script.warnings:
        print_message(f"warning: {warning}")
    tasks = list(script.jobs(job))
    accepted: list[SubmittedJob] = []
    with connected(url) as client:
        for number, task in enumerate(tasks):
            own = key if key is None or not script.tasks else f"{key}-{script.tasks[number]}"
            try:
                accepted.append(
                    client.submit(task(accepted[0].id if accepted else 0), tenant=tenant or script.account, key=own)
                )
            except CommonwattError:
                if accepted:
                    print_message(_taken_back(client, accepted, len(tasks), key))
                raise
        for warning in accepted[0].warnings:
            print_message(f"warning: {warning}")
        parsable = (how.parsable or script.parsable) and not how.as_json
        if parsable:
            click.echo(accepted[0].id)  # which stands for the array in --dependency
        if wait:
            ended = [_awaited(client, one.id) for one in accepted]
    if wait:
        _tell_ends(ended, array=bool(script.tasks), as_json=how.as_json, silent=parsable)
    elif parsable:
        return
    elif not script.tasks:
        _tell(accepted[0], as_json=how.as_json)
    elif how.as_json:
        from commonwatt.model.live_results import SubmittedArray

        print_json(SubmittedArray(jobs=tuple(accepted)))
    else:
        click.echo(f"Submitted jobs {accepted[0].id} to {accepted[-1].id}, {len(accepted)} tasks of an array")


def _taken_back(client: Client, accepted: Sequence[SubmittedJob], tasks: int, key: str | None) -> str:
    """Cancel the tasks of an array that was not accepted as a whole; with a key, the next attempt goes on from them."""
    from commonwatt.model.errors import CommonwattError

    some = f"{len(accepted)} of {tasks} tasks"
    if key is not None:
        return f"{some} are submitted, from job {accepted[0].id} on; with the same --key the others are, too"
    try:
        for one in accepted:
            client.cancel(one.id)
    except CommonwattError:
        return f"{some} are submitted, from job {accepted[0].id} on: cancel them before you try again"
    return f"no task is submitted: the {some} that were accepted are cancelled"


def script_of(file: Path, arguments: Sequence[str], flags: Mapping[str, Any]) -> tuple[BatchScript, JobFile]:
    """Return the batch script *file* as read, and its job, with what *flags* (by their parameters' names) override."""
    import os
    from datetime import datetime

    from commonwatt.data.batch_scripts import read_batch_script
    from commonwatt.data.files import validate
    from commonwatt.model.errors import InputError
    from commonwatt.model.job_file import LONGEST_SCRIPT, JobFile

    for name, flag in _NOT_OF_SCRIPTS.items():
        if flags.get(name) is not None:
            raise InputError("no such option with a batch script", field=flag, value=flags[name])
    names = _OVERRIDE | {name: name for name in _CONDITIONS}
    options = {name: flags[flag] for flag, name in names.items() if flags.get(flag) is not None}
    if "cpus-per-gpu" in options:
        options["cpus-per-gpu"] = f"{options['cpus-per-gpu']:g}"
    content = _from_stdin(4 * LONGEST_SCRIPT + 1) if str(file) == "-" else None
    script = read_batch_script(file, arguments, Path.cwd(), datetime.now().astimezone(), options, content)
    export = flags["export"] if flags.get("export") is not None else script.export
    others = {name: value for name, value in flags.items() if name not in (*names, "export")}
    fields = {**script.fields, "environment": _exported(export or "ALL", os.environ), **_declared(others, None)}
    if flags.get("profiles"):
        fields |= _profiled(flags["profiles"], fields)
    try:
        return script, validate(fields, JobFile)
    except InputError as error:
        raise error.within(file) from None


def _from_stdin(most: int) -> bytes:
    from commonwatt.model.errors import InputError

    if sys.stdin is None:
        raise InputError("a batch script on standard input, which is closed", field="FILE", value="-")
    return sys.stdin.buffer.read(most)


def _exported(text: str, own: Mapping[str, str]) -> dict[str, str]:
    """Return what ``--export`` of a batch script says; ALL is everything but what belongs to another job."""
    kept = {
        name: value for name, value in own.items()
        if not name.startswith(("COMMONWATT_", "SLURM_", "SBATCH_", "BASH_FUNC_"))
        and name not in {"CUDA_VISIBLE_DEVICES", "_", "PWD", "OLDPWD", "SHLVL"}
    }  # fmt: skip
    parts = text.split(",")
    rest = ",".join(part for part in parts if part != "ALL")
    return {**(kept if "ALL" in parts else {}), **(environment(rest, own) if rest else {})}


def job_of(file: Path | None, flags: Mapping[str, Any], program: list[str] | None) -> JobFile:
    """Return the job that FILE, *flags* by the names of their parameters, and the command after ``--`` describe."""
    from commonwatt.data.files import load_yaml, validate
    from commonwatt.model.errors import InputError
    from commonwatt.model.job_file import JobFile

    for name in _OF_SCRIPTS:
        if flags.get(name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError("no such option without a batch script", field=flag, value=flags[name])
    fields: dict[str, Any] = {}
    if file is not None:
        fields = load_yaml(file, JobFile).model_dump(exclude_unset=True)
    declared = _declared(flags, program)
    if "due" in declared:
        fields.pop("due_in_s", None)
    fields |= declared
    if flags.get("profiles"):
        fields |= _profiled(flags["profiles"], fields)
    if not fields:
        raise InputError("a job file, or flags and a command after `--` (see commonwatt submit --help)", field="FILE")
    if "command" in fields:
        fields.setdefault("name", script_name(fields["command"]))
    return validate(fields, JobFile)


def _profiled(paths: tuple[Path, ...], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what profiles say of a job with *fields*."""
    from commonwatt.data.training_profiles import read_profiles, times_of
    from commonwatt.model.errors import InputError

    if "times_s" in fields:
        raise InputError("times_s or --profile, not both", field="--profile")
    if "epochs" not in fields:
        raise InputError("the number of epochs, as a profile has the time of one", field="--epochs")
    times = times_of(read_profiles(paths), fields["epochs"])
    counts = {gpus for row in times.times_s.values() for gpus in row}
    return {"times_s": times.times_s, "kind": fields.get("kind", times.kind), "gpus": fields.get("gpus", min(counts))}


def _declared(flags: Mapping[str, Any], program: list[str] | None) -> dict[str, Any]:
    import os

    from commonwatt.model.errors import InputError

    same = ("name", "epochs", "image", "snapshots", "kind", "cpus_per_gpu")
    declared = {name: flags[name] for name in same if flags.get(name) is not None}
    others = {"deadline": "due", "weight": "tardiness_weight", "chdir": "folder", "mail_user": "mail_to"}
    declared |= {field: flags[flag] for flag, field in others.items() if flags.get(flag) is not None}
    declared |= asked_gpus(flags.get("gpus"), flags.get("gres"), flags.get("gpu_type"))
    if flags.get("time_limit") is not None:
        declared["time_limit_s"] = seconds(flags["time_limit"])
    if flags.get("mem_per_gpu") is not None:
        from commonwatt.model.units import memory_gib

        try:
            declared["memory_gib_per_gpu"] = memory_gib(flags["mem_per_gpu"])
        except ValueError:
            raise InputError("a size such as 500M or 64G", field="--mem-per-gpu", value=flags["mem_per_gpu"]) from None
    if flags.get("gpu_counts") is not None:
        try:
            declared["gpu_counts"] = tuple(int(count) for count in flags["gpu_counts"].split(","))
        except ValueError:
            raise InputError("numbers with commas between", field="--gpu-counts", value=flags["gpu_counts"]) from None
    if flags.get("mail_type") is not None:
        from commonwatt.data.batch_scripts import mail_kinds

        try:
            declared["mail_on"], _ = mail_kinds(flags["mail_type"])
        except ValueError as error:
            raise InputError(str(error), field="--mail-type", value=flags["mail_type"]) from None
    conditions = {name: flags[name] for name in _CONDITIONS if flags.get(name) is not None}
    if conditions:
        from datetime import datetime

        from commonwatt.data.batch_scripts import conditions_of

        declared |= conditions_of(conditions, datetime.now().astimezone())
    if flags.get("export") is not None:
        declared["environment"] = environment(flags["export"], os.environ)
    if flags.get("wrap") is not None:
        if program:
            raise InputError("--wrap or a command after `--`, not both", field="--wrap")
        declared["command"] = ("sh", "-c", flags["wrap"])
    elif program:
        declared["command"] = tuple(program)
    return declared


def script_name(program: Sequence[str]) -> str:
    """Name a nameless job after its script, else its program."""
    import re

    scripts = [word for word in program if word.endswith((".py", ".sh"))]
    stem = Path(scripts[0] if scripts else program[0]).stem
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem).lstrip("._-")[:100] or "job"


def _tell(job: SubmittedJob, *, as_json: bool, parsable: bool = False) -> None:
    if as_json:
        print_json(job)
    elif parsable:
        click.echo(job.id)
    else:
        click.echo(f"Submitted job {job.id}")


def _tell_ends(jobs: Sequence[JobDetail], *, array: bool, as_json: bool, silent: bool) -> None:
    from commonwatt.model.live_results import EndedArray

    if not array:
        _tell_end(jobs[0], as_json=as_json, silent=silent)
        return
    if as_json:
        print_json(EndedArray(jobs=tuple(jobs)))
    elif not silent:
        counts = {status: sum(job.status == status for job in jobs) for status in ("completed", "failed", "cancelled")}
        said = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        click.echo(f"jobs {jobs[0].id} to {jobs[-1].id} have ended: {said}")
    if any(job.status != "completed" for job in jobs):
        sys.exit(1)


def _tell_end(job: JobDetail, *, as_json: bool, silent: bool = False) -> None:
    from time import time

    if as_json:
        print_json(job)
    elif not silent:
        said = (job.sentence or job.status).removeprefix(f"{job.name} ")
        click.echo(f"job {job.id} ({job.name}): {said}, {when(job.ended_s, time())}")
    if job.status != "completed":
        sys.exit(1)
