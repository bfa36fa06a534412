"""What verbs share: one JSON document on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from commonwatt._stopwatch import Stopwatch, without_compiling

if TYPE_CHECKING:
    from pydantic import BaseModel

    from commonwatt.model.plugins import Group

__all__ = [
    "PluginChoice",
    "RunProgress",
    "compiling",
    "completed_by",
    "digest",
    "json_option",
    "kubernetes_options",
    "naming_file",
    "needing",
    "pace_of",
    "plot_option",
    "print_json",
    "print_message",
    "progress_bar",
    "seed_option",
]

DAY_S = 86400.0
LINE_EVERY_S = 5.0
"""Seconds between two lines of progress where standard error is not a terminal."""

F = TypeVar("F", bound=Callable[..., Any])


def completed_by(names: Callable[[click.Context], Iterable[str]]) -> Callable[..., list[CompletionItem]]:
    """Return what completes an argument or option by *names*, and by files where none of them begins as typed."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
        near = [CompletionItem(name) for name in names(ctx) if name.startswith(incomplete)]
        return near or [CompletionItem(incomplete, type="file")]

    return complete


class FiniteRange(click.FloatRange):
    """A range of numbers without infinity and NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:  # noqa: ANN401
        """Return *value* as a number; fails if it is outside, or not finite."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class PluginChoice(click.Choice):  # type: ignore[type-arg,unused-ignore]
    """Names of ours, and of plugins of a group, which are looked up when they are needed."""

    def __init__(self, ours: Iterable[str], group: Group) -> None:
        self._group = group
        super().__init__(tuple(ours))
        self.ours = tuple(ours)

    @property
    def choices(self) -> tuple[str, ...]:
        """All names, ours first."""
        from commonwatt.model.plugins import names_of

        return (*self.ours, *names_of(self._group, self.ours))

    @choices.setter
    def choices(self, names: Iterable[str]) -> None:
        """Take what ``click.Choice`` was made with, which is ours."""


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document on standard output.")(
        command
    )


def seed_option(command: F) -> F:
    """Add ``--seed``."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")(
        command
    )


def kubernetes_options(command: F) -> F:
    """Add ``--kubeconfig``, ``--context``, ``--topology`` and ``--near``, of commands that list nodes of Kubernetes."""
    kubeconfig = click.Path(path_type=Path)
    topology = "Label of Kubernetes nodes (rack, zone): a job never spans two values of it."
    near = "Label of Kubernetes nodes: a job prefers nodes with the fewest values of it. Repeat: wide to narrow."
    for option in (
        click.option("--near", metavar="LABEL", multiple=True, help=near),
        click.option("--topology", metavar="LABEL", help=topology),
        click.option("--context", metavar="NAME", help="Context of the kubeconfig, instead of its current one."),
        click.option("--kubeconfig", type=kubeconfig, metavar="FILE", help="Instead of KUBECONFIG and ~/.kube/config."),
    ):
        command = option(command)
    return command


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
        from commonwatt.report.pictures import check_plot

        check_plot(path)
    return path


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Let an ``InputError`` raised inside name *path*."""
    from commonwatt.model.errors import InputError

    try:
        yield
    except InputError as error:
        raise error.within(path) from None


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Name the *extra* that installs a package which an import inside misses."""
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
    sys.stdout.flush()  # a server goes on after its document, and whoever reads it from a pipe waits for it


def print_message(text: str) -> None:
    """Print a message to standard error."""
    click.echo(text, err=True)


def digest(document: BaseModel) -> str:
    """SHA-256 of a document as validated."""
    from commonwatt.model.fields import digest as of

    return of(document)


class RunProgress:
    """Hears how far runs of *length_s* are; ``completed`` is how many runs that makes, in parts."""

    def __init__(self, length_s: float = 1.0) -> None:
        self._length_s = max(length_s, 1e-9)
        self._finished, self._here_s = 0, 0.0
        self._elsewhere_s: Callable[[], Iterable[float]] = lambda: ()

    def at(self, policy: str, time_s: float) -> None:  # noqa: ARG002
        """Hear that the run in this process has come to *time_s*."""
        self._here_s = time_s

    def follow(self, times_s: Callable[[], Iterable[float]]) -> None:
        """Hear how to ask how far the runs in other processes have come."""
        self._elsewhere_s = times_s

    def done(self) -> None:
        """Hear that a run has ended."""
        self._finished += 1
        self._here_s = 0.0

    @property
    def finished(self) -> int:
        """Runs that have ended."""
        return self._finished

    @property
    def furthest_s(self) -> float:
        """How far the run under way is that has come furthest, in its own time."""
        return min(self._length_s, max((self._here_s, *self._elsewhere_s())))

    @property
    def completed(self) -> float:
        """Runs that have ended, and the parts of those under way."""
        under_way = [self._here_s, *self._elsewhere_s()]
        return self._finished + sum(min(0.99, time_s / self._length_s) for time_s in under_way)


@contextmanager
def progress_bar(
    what: str, total: int, length_s: float, pace: Callable[[RunProgress, float, float], str] | None = None
) -> Iterator[RunProgress]:
    """Show on standard error how far *total* runs of *length_s* are: a bar, or a line every few seconds elsewhere.

    *pace* adds what else is to be said, of the progress, the runs (and parts) that are left, and the seconds spent.
    """
    progress = RunProgress(length_s)
    began = perf_counter()

    def more(completed: float) -> str:
        return "" if pace is None else pace(progress, total - completed, perf_counter() - began)

    with _bar(what, total, more) if sys.stderr.isatty() else _lines(what, total, more) as (show, every_s):
        ended = threading.Event()

        def tell() -> None:
            furthest = 0.0
            while not ended.wait(every_s):
                furthest = max(furthest, progress.completed)
                show(progress.finished, furthest)

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield progress
        finally:
            ended.set()
            teller.join()
            if progress.finished == total:
                show(total, total)


@contextmanager
def _bar(what: str, total: int, more: Callable[[float], str]) -> Iterator[tuple[Callable[[int, float], None], float]]:
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=total)

        def show(finished: int, completed: float) -> None:  # noqa: ARG001
            bar.update(task, completed=completed, description=" ".join(filter(None, (what, more(completed)))))

        yield show, 0.2


@contextmanager
def _lines(what: str, total: int, more: Callable[[float], str]) -> Iterator[tuple[Callable[[int, float], None], float]]:
    began = perf_counter()
    shown = False

    def show(finished: int, completed: float) -> None:
        nonlocal shown
        if finished == total and not shown:
            return  # it was over before the first line
        shown = True
        runs = f"{finished} of {total} done, " if total > 1 else ""
        rest = more(completed) if completed < total else ""
        said = f"{what}: {runs}{100 * completed / total:.0f}%, {perf_counter() - began:.0f} s"
        print_message(f"{said}, {rest}" if rest else said)

    yield show, LINE_EVERY_S


def pace_of(submit_s: Sequence[float]) -> Callable[[RunProgress, float, float], str]:
    """Return what tells the pace of runs whose jobs are submitted at *submit_s*, in order.

    What it returns takes the progress, the runs (and parts) that are left, and the seconds spent.
    """
    length_s = max(submit_s[-1], 1e-9)

    def pace(progress: RunProgress, left: float, spent_s: float) -> str:
        at_s = progress.furthest_s
        parts = [
            f"day {at_s / DAY_S:.1f} of {length_s / DAY_S:.1f}",
            f"{bisect_right(submit_s, at_s):,} of {len(submit_s):,} jobs",
        ]
        done = progress.completed
        if done > 0 and spent_s > 0:
            parts += [f"{done * length_s / DAY_S / spent_s:.2g} days/s", f"{_span(spent_s * left / done)} left"]
        return ", ".join(parts)

    return pace


def _span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def compiling(what: str) -> Iterator[Stopwatch]:
    """Announce on standard error that Numba compiles inside, if it does; *what* names the code in a few words.

    Yields a running ``Stopwatch``. Numba keeps what it compiles in a cache, so this happens once on each machine, and
    again after an upgrade.
    """
    with without_compiling(lambda: print_message(f"compiling {what}, once per machine")) as watch:
        yield watch
    if watch.compiled:
        print_message(f"compiled in {watch.compile_s:.1f} s")
