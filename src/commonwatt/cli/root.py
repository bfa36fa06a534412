"""The root command: finds verbs by name, turns errors of users into one line and exit code 2."""

from __future__ import annotations

import signal
import sys
import threading
from importlib import import_module
from types import FrameType
from typing import NoReturn

import click

from commonwatt import __version__

__all__ = ["main"]

VERBS = {
    "cancel": "Cancel jobs of the control plane.",
    "drain": "Give nodes of the control plane no further jobs.",
    "events": "Show what happened on the control plane, or, in a dry run, what would have.",
    "explain": "Say why a job of the control plane runs where it does, or waits.",
    "hold": "Keep jobs of the control plane from being started.",
    "jobs": "Show the jobs of the control plane.",
    "log": "Show what a job of the control plane printed.",
    "mode": "Show, or switch, whether the control plane carries out what it decides.",
    "nodes": "Show the nodes of the control plane.",
    "release": "Let jobs that are held be started again.",
    "submit": "Submit a job to the control plane.",
    "tenants": "Show tenants, what they are entitled to, and what they got.",
    "token": "Make, list and revoke tokens of the control plane.",
    "undrain": "Let drained nodes have jobs again.",
    "check": "Check a configuration of the control plane, and all it needs, before it runs.",
    "data": "List public traces and profiles; check a log one has got.",
    "partition": "Choose a hardware configuration, and whose share of it, by a market.",
    "forecast": "Forecast how many GPUs must be on, with a promise that is kept.",
    "map": "Map a batch of layers onto sub-accelerators that share bandwidth.",
    "place": "Place the jobs of one problem file: which node, how many GPUs, now.",
    "reproduce": "Run a paper's experiments again, the paper's value beside ours.",
    "schema": "Print the JSON Schema of a file, or the data dictionary.",
    "serve": "Run the control plane: the same scheduler over real jobs.",
    "simulate": "Replay a workload on a cluster under several policies.",
    "store": "Look after the store of the control plane: backup, restore, upgrade, check.",
    "timeslice": "Share one device among tenants: plan, try, profile, serve.",
}


class _Verbs(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command: click.Command = import_module(f"commonwatt.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(VERBS.items()))


@click.group(cls=_Verbs, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="commonwatt")
@click.pass_context
def root(ctx: click.Context) -> None:
    """Fair, energy-aware sharing of accelerators.

    \b
    Try it on a week of jobs:
      commonwatt simulate examples/week.yaml --out out/week
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _one_line(error: click.ClickException) -> str:
    text = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{text}; see {context.command_path} --help" if context is not None else text


def main() -> None:
    """Entry point: 0 done, 1 failed, 2 something the user wrote is wrong, 130 interrupted."""
    from commonwatt.model.errors import CommonwattError, InputError

    interrupts = _interrupts()
    try:
        root(standalone_mode=False)
    except click.exceptions.Exit as ended:
        sys.exit(ended.exit_code)
    except click.ClickException as error:
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _interrupted()
    except InputError as error:
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


def _interrupts() -> list[int]:
    """List that grows with each Ctrl-C: a compiler at work turns one into another error."""
    seen: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        seen.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, note)
    return seen


def _interrupted() -> NoReturn:
    click.echo("interrupted", err=True)
    sys.exit(130)
