"""The root command: finds verbs by name, turns errors into one line and an exit code; groups that take a PROBLEM."""

from __future__ import annotations

import difflib
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from commonwatt import __version__

__all__ = ["HOMES", "VERBS", "ProblemGroup", "VerbGroup", "command_of", "main", "root"]

_PARAMETER = re.compile("`([a-z_]+)`")
_NUMBER = re.compile(r"a valid (integer|float)(?: range)?")
_QUOTED = re.compile("'([^']*)'")  # what a message of click says was given comes first

VERBS = {
    "cancel": "Cancel jobs of the control plane.",
    "capacity": "Show which GPUs the control plane keeps on, and for whom.",
    "drain": "Drain nodes: let running jobs finish, start no new ones.",
    "events": "Show the events of the control plane; in a dry run, the actions not taken.",
    "explain": "Explain why a job of the control plane runs where it does, or waits.",
    "hold": "Hold jobs of the control plane in the queue.",
    "jobs": "Show the jobs of the control plane.",
    "login": "Sign in to the control plane with the site's identity provider.",
    "logout": "Forget a login to the control plane.",
    "whoami": "Show who you are to the control plane.",
    "log": "Show the output of a job of the control plane.",
    "mode": "Show or switch the mode of the control plane: dry-run or live.",
    "nodes": "Show the nodes of the control plane.",
    "savings": "Show what the control plane saves against the baseline, by an estimate.",
    "services": "Show the services of the control plane.",
    "release": "Release held jobs of the control plane.",
    "submit": "Submit a job to the control plane.",
    "tenants": "Show tenants, their entitlements and their use.",
    "token": "Create, list and revoke tokens of the control plane.",
    "undrain": "Return drained nodes of the control plane to service.",
    "bench": "Score solvers on fixed problems: ours, baselines, peers and plugins.",
    "attach": "Attach read-only to a running Slurm or Kubernetes; show what commonwatt would save.",
    "check": "Check a configuration of the control plane before it runs.",
    "completion": "Print the script that completes commands in bash, zsh or fish.",
    "init": "Write a scenario for this cluster, from Slurm, nvidia-smi or Kubernetes.",
    "data": "List public traces and profiles; validate a job log.",
    "partition": "Choose a hardware configuration and divide it among tenants by a market.",
    "forecast": "Forecast GPU demand and plan how many GPUs stay on.",
    "map": "Map a batch of layers onto sub-accelerators that share bandwidth.",
    "place": "Place jobs on nodes at one moment, and choose their GPU counts.",
    "profile": "Measure your own training on this machine: epochs, scaling, power.",
    "reproduce": "Reproduce a paper's figures and tables beside the paper's values.",
    "schema": "Print the JSON Schema of a file, or the data dictionary.",
    "serve": "Run the control plane: the same scheduler over real jobs.",
    "simulate": "Replay a workload on a cluster under several policies.",
    "study": "Estimate what another scheduler would have saved on a job log.",
    "store": "Back up, restore, upgrade or check the store of the control plane.",
    "timeslice": "Share one device among tenants: plan, run, profile, serve.",
}

# Verbs whose module holds several; every other verb is the ``command`` of the module of its name.
HOMES = {
    **dict.fromkeys(("cancel", "explain", "hold", "jobs", "log", "release"), "jobs"),
    **dict.fromkeys(
        ("capacity", "drain", "events", "mode", "nodes", "savings", "services", "tenants", "undrain"), "cluster"
    ),
    **dict.fromkeys(("login", "logout", "whoami"), "login"),
    **dict.fromkeys(("check", "serve"), "serve"),
    **dict.fromkeys(("completion", "schema"), "schema"),
}


def command_of(verb: str) -> click.Command:
    """Import the command called *verb*, one of ``VERBS``."""
    module = import_module(f"commonwatt.cli.{HOMES.get(verb, verb)}")
    command: click.Command = getattr(module, verb if verb in HOMES else "command")
    return command


class VerbGroup(click.Group):
    """A group whose commands name the option, as it is typed, where an argument is refused."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was typed."""
        from commonwatt.model.errors import ArgumentError, InputError

        try:
            return super().invoke(ctx)
        except ArgumentError as error:
            command = self.get_command(ctx, str(ctx.invoked_subcommand))
            typed = None if command is None else _typed(command, str(error.field))
            if command is None or typed is None:
                raise
            expected = _PARAMETER.sub(lambda named: _typed(command, named[1]) or named[0], error.expected)
            raise InputError(expected, file=error.file, field=typed, value=error.value) from None


def _typed(command: click.Command, parameter: str) -> str | None:
    """Return how *parameter* of a function is typed for *command*: an option of either name, or an argument."""
    option = f"--{parameter.replace('_', '-')}"
    for given in command.params:
        if isinstance(given, click.Option) and (given.name == parameter or option in given.opts):
            return max(given.opts, key=len)
        if given.name == parameter:
            return given.human_readable_name
    return None


class _Verbs(VerbGroup):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        return command_of(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete verbs without importing them."""
        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [CompletionItem(name, help=said) for name, said in sorted(VERBS.items()) if name.startswith(incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(VERBS.items()))


@click.group(cls=_Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="commonwatt")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Fair, energy-aware sharing of accelerators.

    \b
    Example:
      commonwatt simulate examples/demo.yaml --out out/demo
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _one_line(error: click.ClickException) -> str:
    text = _NUMBER.sub(lambda kind: "a number" if kind[1] == "float" else "a whole number", error.format_message())
    text = " ".join(text.split()).rstrip(".")
    context = getattr(error, "ctx", None)
    if context is None:
        return text
    meant = "" if "Did you mean" in text or "did you mean" in text else _meant(error, context)
    group = context.parent
    hidden = group is not None and isinstance(group.command, ProblemGroup) and context.command is group.command.default
    asked = group if group is not None and hidden else context
    return f"{text}{meant}; see {asked.command_path} --help"


def _meant(error: click.ClickException, context: click.Context) -> str:
    """Return a suggestion for a misspelt command or option value."""
    from commonwatt.model.names import did_you_mean

    names: Iterable[str] = ()
    kind = getattr(getattr(error, "param", None), "type", None)
    if isinstance(kind, click.Choice):
        names = [str(choice) for choice in kind.choices]
    elif isinstance(context.command, click.Group) and "command" in error.message:
        names = context.command.list_commands(context)
    given = _QUOTED.search(error.message)
    return did_you_mean(given[1], names) if given else ""


def main() -> None:
    """Entry point: 0 done, 1 failed, 2 the user must change or install something, 130 interrupted."""
    with _interrupts() as interrupts:
        _run(interrupts)


def _run(interrupts: list[int]) -> None:
    from commonwatt.model.errors import CommonwattError, InputError, MissingExtraError, PluginError

    try:
        root(standalone_mode=False)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except (InputError, MissingExtraError, PluginError) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except CommonwattError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception:
        if not interrupts:
            raise
        _interrupted()


@contextmanager
def _interrupts() -> Iterator[list[int]]:
    """List that grows with each Ctrl-C: a compiler at work turns one into another error, or loses it in a callback."""
    seen: list[int] = []
    others = sys.unraisablehook
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        seen.append(number)
        raise KeyboardInterrupt

    def lost(unraisable: sys.UnraisableHookArgs) -> None:
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            before.setdefault(signal.SIGALRM, signal.signal(signal.SIGALRM, note))
            signal.setitimer(signal.ITIMER_REAL, 0.05)  # raised again when the callback is over
        else:
            others(unraisable)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, note)}
    sys.unraisablehook = lost
    try:
        yield seen
    finally:
        if signal.SIGALRM in before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = others
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupted() -> NoReturn:
    click.echo("interrupted", err=True)
    sys.exit(130)


class ProblemGroup(VerbGroup):
    """A group whose first argument is a PROBLEM, for ``default``, unless it is the name of a subcommand."""

    default: click.Command  # added first; its name is not shown

    def add_default(self, command: click.Command) -> None:
        """Make *command* the one that a PROBLEM is for."""
        self.default = command
        self.add_command(command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the default command before a PROBLEM, or before options of its own."""
        asks = {"-h", "--help"}
        if args and args[0] not in self.commands and not (len(args) == 1 and args[0] in asks):
            self._refuse_misspelt(ctx, args[0])
            args = [str(self.default.name), *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, ctx: click.Context, first: str) -> None:
        """Fail if *first* is no file, and nearly a subcommand."""
        near = difflib.get_close_matches(first, self._others(), n=1)
        if near and not Path(first).exists():
            ctx.fail(f"No such command or file {first!r} (did you mean {near[0]}?)")

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show how each is called."""
        formatter.write_usage(ctx.command_path, "PROBLEM [OPTIONS]")
        for name in self._others():
            formatter.write_usage(ctx.command_path, f"{name} [OPTIONS] ...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the default command's options, then the subcommands."""
        with click.Context(self.default, info_name=ctx.info_name, parent=ctx.parent) as inner:
            self.default.format_options(inner, formatter)
        with formatter.section("Commands"):
            limit = formatter.width - 6 - max(map(len, self._others()))
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in self._others()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete subcommands, then files; options of the default command."""
        if incomplete.startswith("-"):
            with click.Context(self.default, info_name=ctx.info_name, parent=ctx.parent) as inner:
                return self.default.shell_complete(inner, incomplete)
        near = [name for name in self._others() if name.startswith(incomplete)]
        return [CompletionItem(name) for name in near] or [CompletionItem(incomplete, type="file")]

    def _others(self) -> list[str]:
        return sorted(name for name in self.commands if name != self.default.name)
