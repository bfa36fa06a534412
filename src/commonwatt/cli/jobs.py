"""Commands on jobs of the control plane: ``jobs``, ``explain``, ``log``, ``cancel``, ``hold``, ``release``."""

from __future__ import annotations

import codecs
import os
import re
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json, print_message
from commonwatt.cli.remote import JOB, connected, plain, request_each_job, server_option, show, when

if TYPE_CHECKING:
    from collections.abc import Sequence

    from commonwatt.client import Client
    from commonwatt.model.live_results import JobConfiguration, JobState

__all__ = ["cancel", "expected_run_time", "explain", "hold", "jobs", "log", "release"]

STATUSES = ("waiting", "running", "completed", "failed", "cancelled")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Show jobs that have ended, too.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice(STATUSES),
    multiple=True,
    help="Show only jobs with this status; repeatable.",
)
@click.option("--mine", is_flag=True, help="Show only jobs of the token's tenant (a tenant sees no others).")
@click.option("--tenant", metavar="NAME", help="Show only jobs of this tenant (operators).")
@click.option("--find", metavar="TEXT", help="Show only jobs whose name contains this, or whose number it is.")
@click.option("--newest", is_flag=True, help="Show the newest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=200, show_default=True, help="Show at most this many."
)  # fmt: skip
@click.option("--cursor", type=click.IntRange(min=0), default=0, help="Continue after a page: its `next_cursor`.")
@server_option
@json_option
def jobs(
    *, everything: bool, statuses: tuple[str, ...], mine: bool, tenant: str | None, find: str | None, newest: bool,
    limit: int, cursor: int, url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show jobs: where they run and their progress, or why they wait and their expected start.

    \b
    Examples:
      commonwatt jobs
      commonwatt jobs --all --newest --json
      commonwatt jobs --find resnet
    """
    from time import time

    from commonwatt.model.errors import InputError

    wanted = statuses or (STATUSES if everything else STATUSES[:2])
    with connected(url) as client:
        if mine:
            own = client.whoami().tenant
            if own is None:
                raise InputError("a token of a tenant, as an operator has no jobs", field="--mine")
            tenant = own
        page = client.job_page(status=wanted, tenant=tenant, find=find, newest_first=newest, cursor=cursor, limit=limit)
    if as_json:
        print_json(page)
        return
    now_s = time()
    headings = ("id", "name", "tenant", "status", "where", "GPUs", "progress", "expected", "why")
    rows = [_row(job, now_s) for job in page.jobs]
    title = ", ".join(f"{count:,} {status}" for status, count in page.counts.items() if count) or "no jobs"
    show(title, headings, rows, right=("id", "GPUs", "progress"))
    if page.next_cursor is not None:
        print_message(f"there are more: --cursor {page.next_cursor}")


def _row(job: JobState, now_s: float) -> tuple[str, ...]:
    expected = ""
    if job.status == "running":
        ends_s = job.expected_end_s
        word = "ends" if ends_s and ends_s > now_s - 1 else "was to end"
        expected = f"{word} {when(ends_s, now_s)}" if ends_s else "end unknown"
    elif job.status == "waiting":
        begins_s = job.expected_start_s and max(job.expected_start_s, now_s)  # it was worked out some seconds ago
        expected = f"starts {when(begins_s, now_s)}" if begins_s else "start unknown"
    elif job.ended_s is not None:
        expected = f"ended {when(job.ended_s, now_s)}"
    status = f"{job.status}, held" if job.held and job.status in STATUSES[:2] else job.status
    return (
        str(job.id), job.name, job.tenant, f"{status}, late" if job.late else status, " ".join(job.nodes),
        str(job.gpus or job.gpus_asked), f"{job.done_epochs:g}/{job.epochs}", expected, job.sentence or "",
    )  # fmt: skip


_SHOWN = 20  # events in the terminal; --json has all


@click.command()
@click.argument("job", type=JOB)
@server_option
@json_option
def explain(job: int, *, url: str | None, as_json: bool) -> None:
    """Explain why JOB runs where it does, or why it waits. Show its expected start and end, and its history.

    \b
    Example:
      commonwatt explain 17
    """
    from datetime import UTC, datetime
    from time import time

    with connected(url) as client:
        why = client.explain(job)
    if as_json:
        print_json(why)
        return
    now_s = time()
    begins_s = why.expected_start_s
    if begins_s is not None and why.status == "waiting":
        begins_s = max(begins_s, now_s)  # it was worked out some seconds ago
    code = "" if why.reason in (None, why.status) else f" [{why.reason}]"
    active = why.status in ("waiting", "running")
    head, told = f"job {why.job} ({why.name})", why.sentence
    own = next((name for name in (f"{why.job}-{why.name} ", f"{why.name} ") if told.startswith(name)), None)
    if own is not None:
        head, told = (head if active else f"{head}:"), told.removeprefix(own)
    else:
        head = f"{head} is {why.status}:" if active else f"{head}:"
    click.echo(plain(f"{head} {told}{code}"))
    over = why.expected_end_s is not None and why.expected_end_s < now_s - 1
    for what, moment in (
        ("expected start", begins_s), ("was to end" if over else "expected end", why.expected_end_s),
        ("due", why.due_s),
    ):  # fmt: skip
        if moment is not None:
            click.echo(f"  {what:<15} {when(moment, now_s)}")
    if active and (said := expected_run_time(why.configurations or ())) is not None:
        click.echo(f"  run time        {said}")
    if why.configurations:
        click.echo(f"  may run on      {', '.join(map(_way, why.configurations[:_SHOWN]))}")
    for event in why.history[-_SHOWN:]:
        at = datetime.fromtimestamp(event.time_s, UTC).isoformat(sep=" ", timespec="seconds")
        click.echo(plain(f"  {at[:19]}Z  {event.kind:<11} {event.sentence}"))


def expected_run_time(configurations: Sequence[JobConfiguration]) -> str | None:
    """Say what is known of the run time by other jobs, if that is all; the first that is speaks for all."""
    from commonwatt.model.units import plural, span, span_between

    known = next((c for c in configurations if c.earlier_jobs is not None and c.time_s is not None), None)
    longer = next((c.earlier_jobs for c in configurations if c.earlier_jobs is not None and c.time_s is None), None)
    if known is None and longer is not None:
        return f"longer than {plural(longer, 'similar job')}"
    if known is None:
        unknown = configurations and all(c.source == "unknown" for c in configurations)
        return "no run time is known yet" if unknown else None
    about = span(known.time_s or 0.0) if known.likely_s is None else span_between(*known.likely_s)
    return f"about {about}, by {plural(known.earlier_jobs or 0, 'similar job')}"


def _way(configuration: JobConfiguration) -> str:
    from commonwatt.model.units import span

    what, time_s = f"{configuration.gpus} x {configuration.gpu_type}", configuration.time_s
    return f"{what}: {'unknown' if time_s is None else f'{span(time_s)} ({configuration.source})'}"


@click.command()
@click.argument("job", type=JOB)
@click.option(
    "--last-bytes", type=click.IntRange(1, 1_000_000), default=65_536, show_default=True,
    help="Show at most this many bytes, from the end.",
)  # fmt: skip
@click.option("--attempt", type=click.IntRange(1, 2**31 - 1), help="Show the run of this number, from 1.")
@click.option("--follow", "-f", is_flag=True, help="Show all output of the run, and follow it until the job ends.")
@server_option
@json_option
def log(
    job: int, *, last_bytes: int, attempt: int | None, follow: bool, url: str | None, as_json: bool
) -> None:  # fmt: skip
    """Show the end of the output of JOB, from its current or last run (not of engine simulated).

    A batch script prints to a file, which has all its runs, and its errors may go to another. They are shown where
    they are on this machine and you may read them; else the command only names them.

    \b
    Examples:
      commonwatt log 17
      commonwatt log 17 --attempt 1
      commonwatt log 17 --follow
    """
    from commonwatt.model.live_results import JobOutput

    if follow and as_json:
        raise click.UsageError("--follow prints output as it comes, not a JSON document: leave out --json")
    with connected(url) as client:
        if follow:
            _follow(client, job, attempt)
            return
        text = client.log(job, last_bytes=last_bytes, attempt=attempt)
        named = _named(text)
        if last_bytes < _LONGEST_LINES and text.endswith("]\n"):  # perhaps the end of such a line
            named = _named(client.log(job, last_bytes=_LONGEST_LINES, attempt=attempt))
    ends = {what: _File(path).end(last_bytes) for what, path in named.items()}
    if as_json:
        out, errors = ends.get("output goes"), ends.get("errors go")
        print_json(JobOutput(job=job, text=text if out is None else out, errors=errors))
        return
    shown = False
    for what, path in named.items():
        end = ends[what]
        print_message(plain(f"-- {path} --" if end is not None else f"{path} cannot be read here"))
        if end is not None:
            shown = True
            click.echo(plain(end, keep="\n\t"), nl=not end.endswith("\n"))
    if not shown:
        click.echo(plain(text, keep="\n\t"), nl=not text.endswith("\n"))


_GOES_TO = re.compile(r"^\[commonwatt: (output goes|errors go) to (/.*)\]$", re.M)
_LONGEST_LINES, _PART, _POLL_S = 16_384, 1_000_000, 1.0


def _named(text: str) -> dict[str, str]:
    """Return the files that a batch script's output and errors go to, as its run says first, output first."""
    return dict(sorted(_GOES_TO.findall(text), reverse=True))


@dataclass
class _File:
    """The file that a batch script prints to, read as the user of this command; no link, and nothing but a file."""

    path: str
    at: int = 0
    decoder: codecs.IncrementalDecoder = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def end(self, last_bytes: int) -> str | None:
        """Return the last bytes of it, or ``None`` if it cannot be read."""
        part = self._read(last_bytes, from_end=True)
        return None if part is None else part.decode("utf-8", "replace")

    def more(self) -> str | None:
        """Return what follows, or ``None`` if it cannot be read."""
        part = self._read(_PART)
        return None if part is None else self.decoder.decode(part)

    def _read(self, most: int, *, from_end: bool = False) -> bytes | None:
        try:
            number = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(number, "rb") as file:
                status = os.fstat(number)
                if not stat.S_ISREG(status.st_mode):
                    return None
                if from_end:
                    self.at = max(0, status.st_size - most)
                elif status.st_size < self.at:  # it was emptied
                    self.at = 0
                part = os.pread(file.fileno(), most, self.at)
        except (OSError, ValueError):
            return None
        self.at += len(part)
        return part


def _follow(client: Client, job: int, attempt: int | None) -> None:
    shown, files = None, dict[str, _File]()
    for run, text in client.follow_log(job, attempt=attempt):
        if shown not in (None, run):
            print_message(f"-- run {run} of job {job} --")
        shown = run
        own = [files.setdefault(path, _File(path)) for path in _named(text).values()]  # a later run appends to them
        readable = []
        for file in own:
            if (first := file.more()) is None:
                print_message(plain(f"{file.path} cannot be read here"))
                continue
            readable.append(file)
            print_message(plain(f"-- {file.path} --"))
            click.echo(plain(first, keep="\n\t"), nl=False)
        if readable:
            _follow_files(client, job, run, readable)
        else:
            click.echo(plain(text, keep="\n\t"), nl=False)


def _follow_files(client: Client, job: int, run: int, files: list[_File]) -> None:
    """Print what comes to *files* until this run is over; says where it comes from when that changes."""
    over, last = False, files[-1]
    while not over:
        state = client.job(job)
        over = state.attempts > run or state.status not in STATUSES[:2]
        for file in files:
            while text := file.more():
                if file is not last:
                    print_message(plain(f"-- {file.path} --"))
                last = file
                click.echo(plain(text, keep="\n\t"), nl=False)
        if not over:
            time.sleep(_POLL_S)


@click.command()
@click.argument("jobs", metavar="JOB...", type=JOB, nargs=-1, required=True)
@server_option
@json_option
def cancel(jobs: tuple[int, ...], *, url: str | None, as_json: bool) -> None:
    """Cancel waiting or running jobs. JOB is a number, as `commonwatt jobs` shows it.

    \b
    Example:
      commonwatt cancel 17 18
    """
    request_each_job(url, jobs, lambda client, job: client.cancel(job), "will be cancelled", as_json=as_json)


@click.command()
@click.argument("jobs", metavar="JOB...", type=JOB, nargs=-1, required=True)
@server_option
@json_option
def hold(jobs: tuple[int, ...], *, url: str | None, as_json: bool) -> None:
    """Hold jobs in the queue until they are released. JOB is a number, as `commonwatt jobs` shows it.

    A running job keeps running. If it is preempted, it stays in the queue.

    \b
    Example:
      commonwatt hold 17 18
    """
    request_each_job(url, jobs, lambda client, job: client.hold(job), "will be held", as_json=as_json)


@click.command()
@click.argument("jobs", metavar="JOB...", type=JOB, nargs=-1, required=True)
@server_option
@json_option
def release(jobs: tuple[int, ...], *, url: str | None, as_json: bool) -> None:
    """Release held jobs, so that they can start. JOB is a number, as `commonwatt jobs` shows it.

    \b
    Example:
      commonwatt release 17 18
    """
    request_each_job(url, jobs, lambda client, job: client.release(job), "will be released", as_json=as_json)
