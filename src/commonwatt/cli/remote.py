"""What commands on a control plane share: its address, exit codes for refusals, and times as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from commonwatt.cli.output import print_json, print_message

if TYPE_CHECKING:
    from pydantic import BaseModel

    from commonwatt.client import Client
    from commonwatt.model.live_results import JobState, NodeState

__all__ = [
    "JOB",
    "asked_of_nodes",
    "connected",
    "given_ca",
    "plain",
    "request_each_job",
    "server_option",
    "show",
    "when",
]

F = TypeVar("F", bound=Callable[..., Any])
JOB = click.IntRange(1, 2**53 - 1)


class _Refused(click.ClickException):
    """The control plane refused the request."""

    exit_code = 2


def server_option(command: F) -> F:
    """Add ``--url`` and ``--ca``."""
    authorities = click.option(
        "--ca", type=click.Path(path_type=Path), metavar="FILE", expose_value=False, callback=_note_ca,
        help="PEM file of the authority behind its certificate.  [default: COMMONWATT_CA_FILE, else the usual ones]",
    )  # fmt: skip
    return click.option(
        "--url", metavar="URL",
        help="Address of the control plane, also unix:PATH.  [default: COMMONWATT_URL, else "
        "~/.config/commonwatt/client.yaml, else its socket in /run/commonwatt, else http://127.0.0.1:8470; the token "
        "is taken from COMMONWATT_TOKEN, a login or that file]",
    )(authorities(command))  # fmt: skip


_CA = "commonwatt.ca_file"


def _note_ca(context: click.Context, _: click.Parameter, value: Path | None) -> None:
    if value is not None:
        context.meta[_CA] = value


def given_ca() -> Path | None:
    """Return the value of ``--ca``."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(_CA)


@contextmanager
def connected(url: str | None) -> Iterator[Client]:
    """Connect to the control plane. A refusal ends the command with code 2, no answer with 1."""
    from commonwatt.client import Client
    from commonwatt.model.errors import ServiceError

    with Client(url, ca_file=given_ca()) as client:
        try:
            yield client
        except ServiceError as error:
            if error.status == 401:
                raise _Refused(f"{error} (set COMMONWATT_TOKEN, or use commonwatt login)") from None
            if 400 <= error.status < 500 and error.status not in {408, 429}:
                raise _Refused(str(error)) from None
            raise


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table; text in it is shown literally, not as markup."""
    import sys

    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(plain(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 200).print(table)


def plain(text: str, *, keep: str = "") -> str:
    """Return *text* without what could steer a terminal, but for the characters in *keep*."""
    return "".join(c if c.isprintable() or c in f"\N{NO-BREAK SPACE}{keep}" else "?" for c in text)


def when(time_s: float | None, now_s: float) -> str:
    """Return a time relative to now: ``in 2.5 h``, ``3 min ago``, ``now``; empty if unknown."""
    from commonwatt.report import format as fmt

    if time_s is None:
        return ""
    if abs(time_s - now_s) < 1.0:
        return "now"
    return f"in {fmt.duration(time_s - now_s)}" if time_s > now_s else f"{fmt.duration(now_s - time_s)} ago"


def request_each_job(
    url: str | None, jobs: Sequence[int], ask: Callable[[Client, int], JobState], done: str, *, as_json: bool
) -> None:
    """Send one request for each job, even if some are refused. No answer ends the command."""
    from commonwatt.model.live_results import JobsChanged

    asked = _each(url, jobs, ask)
    if as_json:
        print_json(JobsChanged(jobs=tuple(asked.states)))
    else:
        for state in asked.states:
            click.echo(f"job {state.id} ({state.name}): {done}")
    asked.end()


def asked_of_nodes(
    url: str | None, nodes: Sequence[str], ask: Callable[[Client, str], NodeState], done: str, *, as_json: bool
) -> None:
    """Send one request for each node, even if some are refused. No answer ends the command."""
    from commonwatt.model.live_results import NodePage

    asked = _each(url, nodes, ask)
    if as_json:
        print_json(NodePage(nodes=tuple(asked.states)))
    else:
        for state in asked.states:
            click.echo(f"node {state.name}: {done}")
    asked.end()


T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")


@dataclass
class _Asked(Generic[M]):
    """Outcome of the same request for several jobs or nodes."""

    states: list[M] = field(default_factory=list)
    refused: list[click.ClickException] = field(default_factory=list)
    failure: Exception | None = None  # after which nobody else was asked
    left: list[object] = field(default_factory=list)  # who was not, the one it failed at before them

    def end(self) -> None:
        """Tell of what was refused and what failed; raise the last of it."""
        errors: list[Exception] = [*self.refused]
        if self.failure is not None:
            errors.append(self.failure)
            at, *later = self.left
            rest = f"; not asked of {', '.join(map(str, later))}" if later else ""
            print_message(f"warning: it failed at {at}{rest}")
        for error in self.refused[: len(errors) - 1]:
            print_message(f"error: {error.format_message()}")
        if errors:
            raise errors[-1]


def _each(url: str | None, things: Sequence[T], ask: Callable[[Client, T], M]) -> _Asked[M]:
    """Send the requests in order; raises as ``connected`` does if the first gets no answer."""
    from commonwatt.model.errors import CommonwattError

    asked: _Asked[M] = _Asked()
    asked.left.extend(dict.fromkeys(things))
    try:
        with connected(url) as client:
            for thing in dict.fromkeys(things):
                try:
                    with _refusals():
                        asked.states.append(ask(client, thing))
                except _Refused as error:
                    asked.refused.append(error)
                del asked.left[0]
    except (click.ClickException, CommonwattError) as error:
        if not asked.states and not asked.refused:
            raise
        asked.failure = error
    return asked


@contextmanager
def _refusals() -> Iterator[None]:
    from commonwatt.model.errors import ServiceError

    try:
        yield
    except ServiceError as error:
        if error.status in {404, 409}:
            raise _Refused(str(error)) from None
        raise
