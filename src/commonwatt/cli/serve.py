"""``commonwatt serve``, and ``check`` before it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import blamed_on, digest, json_option, needing, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.controlplane.logs import LogFormat
    from commonwatt.controlplane.wiring import Live
    from commonwatt.model.admin_results import CheckLine

__all__ = ["check", "serve"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--host", metavar="ADDRESS", help="Listen here instead of where CONFIG says.")
@click.option("--port", type=click.IntRange(0, 65535), help="The same for the port; 0: any free one.")
@click.option("--mode", type=click.Choice(["live", "dry-run"]), help="Begin in this mode, whatever it was in last.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Logs on standard error, for people or for machines.",
)  # fmt: skip
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@seed_option
@json_option
def serve(
    config: Path, *, host: str | None, port: int | None, mode: str | None, log_format: str, log_level: str, seed: int,
    as_json: bool,
) -> None:  # fmt: skip
    """Run the control plane of CONFIG: take jobs, place, preempt and migrate them, show what it does.

    CONFIG is a scenario file whose `engine` is local, slurm or simulated. It runs until SIGTERM or Ctrl-C; jobs go on
    meanwhile, and are taken up again when it comes back. --json prints one document once it answers.

    \b
    Example:
      commonwatt serve examples/live.yaml
    """
    import logging

    from commonwatt import __version__
    from commonwatt.controlplane.logs import announcement, configure
    from commonwatt.model.live_results import ServeResult
    from commonwatt.report.format import plural

    with needing("live"):
        from commonwatt.controlplane.wiring import open_live
        from commonwatt.service.app import make_app
        from commonwatt.service.context import ServiceContext
        from commonwatt.service.server import bound, run_server

    form: LogFormat = "json" if log_format == "json" else "text"
    configure(form, getattr(logging, log_level.upper()))
    with blamed_on(config):
        live = open_live(config, seed=seed, settled=_leave_alone, mode=mode)
    try:
        with blamed_on(config):
            server = live.config.live.server
            listening = bound(host or server.host, server.port if port is None else port)
        live.start()
        _first_token(live, form)
        supervisor = live.supervisor
        context = ServiceContext(
            live.config, live.folder, live.store, live.maker, supervisor.snapshot, supervisor.wake,
            supervisor.counters.counts
        )  # fmt: skip

        def ready(address: str) -> None:
            engine, nodes = live.config.engine, len(live.cluster)
            public = live.config.live.server.public_url
            for_people = f", for people {public}" if public else ""
            text = f"serving {address}{for_people} (engine {engine}, {plural(nodes, 'node')}); stop it with Ctrl-C"
            known = {"public_url": public} if public else {}
            say(announcement(form, text, "serving", url=address, **known, engine=engine, nodes=nodes))
            if as_json:
                print_json(
                    ServeResult(
                        version=__version__, seed=seed, input_digest=digest(live.config), url=address,
                        public_url=public, engine=live.config.engine, nodes=len(live.cluster),
                    )
                )  # fmt: skip

        run_server(make_app(context), listening, ready)
    finally:
        live.close()


def _leave_alone() -> None:
    """Keep the garbage collector from going over all jobs again and again: with 10,000 that stops everything for 0.5 s.

    What is dropped is given back as ever, as far as nothing goes round in circles; that was collected just before.
    """
    import gc

    gc.unfreeze()
    gc.collect()
    gc.freeze()


def _first_token(live: Live, form: LogFormat) -> None:
    """Make the first operator's token of a new store; it is shown once and kept nowhere."""
    from time import time

    from commonwatt.controlplane.logs import announcement

    if any(token["tenant"] is None and token["revoked_s"] is None for token in live.store.tokens()):
        return
    token = live.store.add_token(None, "first operator", time())
    event = "the first operator's token, shown only now"
    say(announcement(form, f"{event}: {token}", event, token=token))


_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def check(config: Path, *, as_json: bool) -> None:
    """Check CONFIG and all that `commonwatt serve` needs to run it: store, engine, power readings, port, clock.

    One line each, with what to do. Nothing is started or changed. Exit code: 0 it can run (there may be warnings),
    1 something failed, 2 CONFIG itself is wrong.

    \b
    Example:
      commonwatt check examples/live.yaml
    """
    from commonwatt import __version__
    from commonwatt.model.admin_results import CheckResult

    with needing("live"):
        from commonwatt.controlplane.preflight import all_checks
        from commonwatt.controlplane.wiring import read_config

    scenario = read_config(config)
    lines = []
    with blamed_on(config):
        for line in all_checks(scenario, config):
            lines.append(line)
            if not as_json:
                _show(line)
    verdicts = {line.verdict for line in lines}
    verdict = "failed" if "failed" in verdicts else "warning" if "warning" in verdicts else "ok"
    if as_json:
        print_json(
            CheckResult(
                version=__version__, seed=0, input_digest=digest(scenario), verdict=verdict, checks=tuple(lines)
            )
        )  # fmt: skip
    if verdict == "failed":
        sys.exit(1)


def _show(line: CheckLine) -> None:
    click.echo(f"{click.style(f'{line.verdict:8}', fg=_COLOURS[line.verdict])} {line.what}: {line.found}")
    if line.advice is not None:
        click.echo(f"{'':8} -> {line.advice}")
