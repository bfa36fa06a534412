"""What verbs share: one JSON document on standard output, everything else on standard error."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = [
    "Progress",
    "blamed_on",
    "digest",
    "json_option",
    "needing",
    "plot_option",
    "print_json",
    "progress_bar",
    "say",
    "seed_option",
]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document on standard output.")(
        command
    )


def seed_option(command: F) -> F:
    """Add ``--seed``."""
    return click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random."
    )(command)


def plot_option(what: str) -> Callable[[F], F]:
    """Add ``--plot FILE``, which draws *what*; a file that cannot be drawn to is refused before any work is done."""
    return click.option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE",
        callback=_drawable,
        help=f"Draw {what} (.png, .svg or .pdf).",
    )


def _drawable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:  # noqa: ARG001
    if path is not None and not ctx.resilient_parsing:
        from commonwatt.report.saving import check_plot

        check_plot(path)
    return path


@contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Let an ``InputError`` raised inside name *path*."""
    from commonwatt.model.errors import InputError

    try:
        yield
    except InputError as error:
        raise error.within(path) from None


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Tell of a package that is missing, when modules of ours are imported inside, by the *extra* that brings it."""
    from commonwatt.model.errors import MissingExtraError

    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "commonwatt").partition(".")[0] == "commonwatt":
            raise
        raise MissingExtraError(str(error.name), extra) from None


def print_json(document: BaseModel | dict[str, Any]) -> None:
    """Print *document*; NaN and infinity never occur in it."""
    data = document if isinstance(document, dict) else document.model_dump(mode="json")
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def say(text: str) -> None:
    """Tell the user something that is not the result."""
    click.echo(text, err=True)


def digest(document: BaseModel) -> str:
    """SHA-256 of a document as validated."""
    text = json.dumps(document.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


class Progress:
    """Hears how far runs are; tells a bar, if there is one."""

    def __init__(self, advance: Callable[[float], None], length_s: float) -> None:
        self._advance, self._length_s = advance, max(length_s, 1e-9)
        self._finished = 0
        self._shown = -1

    def at(self, policy: str, time_s: float) -> None:  # noqa: ARG002
        """Hear that a run has come to *time_s*."""
        part = min(0.99, time_s / self._length_s)
        if int(100 * part) != self._shown:
            self._shown = int(100 * part)
            self._advance(self._finished + part)

    def done(self) -> None:
        """Hear that a run has ended."""
        self._finished += 1
        self._shown = -1
        self._advance(self._finished)


@contextmanager
def progress_bar(what: str, total: int, length_s: float) -> Iterator[Progress]:
    """Show a bar on standard error while runs of *length_s* go on; none where that is not a terminal."""
    if not sys.stderr.isatty():
        yield Progress(lambda _: None, length_s)
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)
        yield Progress(lambda completed: bar.update(task, completed=completed), length_s)
