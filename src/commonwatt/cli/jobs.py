"""``commonwatt jobs``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import json_option, print_json, say
from commonwatt.cli.remote import connected, server_option, show, when

if TYPE_CHECKING:
    from commonwatt.model.live_results import JobState

__all__ = ["command"]

STATUSES = ("waiting", "running", "completed", "failed", "cancelled")


@click.command()
@click.option("--all", "everything", is_flag=True, help="Jobs that have ended, too.")
@click.option("--status", "statuses", type=click.Choice(STATUSES), multiple=True, help="Only these; repeatable.")
@click.option("--mine", is_flag=True, help="Only those of the token's own tenant, which is all a tenant sees anyway.")
@click.option("--tenant", metavar="NAME", help="Only those of one tenant (operators).")
@click.option("--newest", is_flag=True, help="The newest first.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=200, show_default=True, help="Most jobs to show."
)  # fmt: skip
@click.option("--cursor", type=click.IntRange(min=0), default=0, help="`next_cursor` of the page before.")
@server_option
@json_option
def command(
    *, everything: bool, statuses: tuple[str, ...], mine: bool, tenant: str | None, newest: bool, limit: int,
    cursor: int, url: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show jobs: where they run and how far they are, or why they wait and until when.

    \b
    Examples:
      commonwatt jobs
      commonwatt jobs --all --newest --json
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
        page = client.job_page(status=wanted, tenant=tenant, newest_first=newest, cursor=cursor, limit=limit)
    if as_json:
        print_json(page)
        return
    now_s = time()
    headings = ("id", "name", "tenant", "status", "where", "GPUs", "progress", "expected", "why")
    rows = [_row(job, now_s) for job in page.jobs]
    title = ", ".join(f"{count:,} {status}" for status, count in page.counts.items() if count) or "no jobs"
    show(title, headings, rows, right=("id", "GPUs", "progress"))
    if page.next_cursor is not None:
        say(f"there are more: --cursor {page.next_cursor}")


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
