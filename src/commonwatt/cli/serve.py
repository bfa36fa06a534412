"""``commonwatt serve``, and ``check`` before it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import digest, json_option, naming_file, needing, print_json, print_message, seed_option

if TYPE_CHECKING:
    from socket import socket

    from fastapi import FastAPI

    from commonwatt.controlplane.logs import LogFormat
    from commonwatt.controlplane.wiring import Live
    from commonwatt.model.admin_results import CheckLine
    from commonwatt.service.own_process import ApiChild, ApiProcess
    from commonwatt.service.server import LocalSocket

__all__ = ["check", "serve"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--host", metavar="ADDRESS", help="Address to listen on, instead of CONFIG's.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, instead of CONFIG's; 0: any free one.")
@click.option(
    "--socket", "socket_", metavar="PATH", type=click.Path(path_type=Path),
    help="Unix socket to listen on, instead of CONFIG's (live.server.socket.path).",
)  # fmt: skip
@click.option(
    "--standby/--no-standby", default=True, show_default=True,
    help="If another controller uses the store (MariaDB, PostgreSQL): wait to take over, or exit.",
)  # fmt: skip
@click.option(
    "--mode", type=click.Choice(["live", "power", "dry-run"]), help="Start in this mode, instead of the last one."
)
@click.option(
    "--upgrade", is_flag=True,
    help="Upgrade a store of an earlier version first, once no other controller uses it; by default it is refused.",
)  # fmt: skip
@click.option("--stop-services", is_flag=True, help="Stop services on exit; by default they keep running.")
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True,
    help="Format of the log on standard error.",
)  # fmt: skip
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least severe messages to log.",
)
@seed_option
@json_option
def serve(
    config: Path, *, host: str | None, port: int | None, socket_: Path | None, standby: bool, mode: str | None,
    upgrade: bool, stop_services: bool, log_format: str, log_level: str, seed: int, as_json: bool,
) -> None:  # fmt: skip
    """Run the control plane of CONFIG: accept jobs, place, preempt and migrate them; serve the API and the dashboard.

    CONFIG is a scenario file whose `engine` is local, slurm, kubernetes or simulated. SIGTERM or Ctrl-C stops the
    control plane; jobs and services keep running, and the next `serve` finds them again. --json prints one document as
    soon as it answers.

    \b
    Example:
      commonwatt serve examples/live.yaml
    """
    import logging

    with _no_collection(), needing("live"):
        begun = _begun_api(config)
        from commonwatt import __version__
        from commonwatt.controlplane.logs import announcement, configure
        from commonwatt.controlplane.wiring import open_live
        from commonwatt.data.certificates import Certificates
        from commonwatt.model.live_results import ServeResult
        from commonwatt.model.units import plural
        from commonwatt.service.connections import limits_of
        from commonwatt.service.own_process import has_own_process
        from commonwatt.service.server import bound, run_server, shown_address
        from commonwatt.store.claim import holder_of

    form: LogFormat = "json" if log_format == "json" else "text"
    configure(form, getattr(logging, log_level.upper()))
    if upgrade:
        _upgrade_store(config)
    with naming_file(config):
        live = open_live(config, seed=seed, mode=mode, standby=standby)
    local = None
    try:
        with naming_file(config):
            server = live.config.live.server
            local = _local_socket(live, socket_)
            certificates = None if server.tls is None else Certificates(server.tls, live.folder, "live.server.tls")
            listening = bound(host or server.host, server.port if port is None else port)
        own_process = has_own_process(live.config, len(live.cluster))
        app = None if own_process else _app_of(live)
        live.start()
        supervisor = live.supervisor
        if supervisor.active:
            _first_token(live, form)

        def ready(address: str) -> None:
            engine, nodes = live.config.engine, len(live.cluster)
            public = live.config.live.server.public_url
            for_people = f", for people {public}" if public else ""
            role = "serving" if supervisor.active else f"standing by for {holder_of(live.database)} serving"
            on_socket = "" if local is None else f" and unix:{local.path}"
            where = f"{address}{on_socket}{for_people}"
            text = f"{role} {where} (engine {engine}, {plural(nodes, 'node')}); stop it with Ctrl-C"
            addresses = {"public_url": public} if public else {}
            addresses |= {} if local is None else {"socket": str(local.path)}
            print_message(
                announcement(
                    form,
                    text,
                    "serving",
                    url=address,
                    **addresses,
                    engine=engine,
                    nodes=nodes,
                    standby=not supervisor.active,
                )
            )
            if as_json:
                print_json(
                    ServeResult(
                        version=__version__, seed=seed, input_digest=digest(live.config), url=address,
                        public_url=public, engine=live.config.engine, nodes=len(live.cluster),
                    )
                )  # fmt: skip

        if app is None:
            log = form, getattr(logging, log_level.upper())
            address = shown_address(listening, encrypted=certificates is not None)
            _api_process(live, listening, local, log, begun).run(lambda: ready(address))
        else:
            run_server(app, listening, ready, limits_of(server), certificates=certificates, local=local)
    finally:
        if local is not None:
            local.close()
        was_active = live.supervisor.active
        live.close()
        if stop_services and was_active:  # else they are another controller's
            _stop_services(live)


def _begun_api(config: Path) -> ApiChild | None:
    """Start the API's process, where it will have its own: it loads what it needs while this one does the same."""
    from commonwatt.data.files import load_yaml
    from commonwatt.model.errors import InputError
    from commonwatt.model.nodes import Cluster
    from commonwatt.model.scenario import Scenario
    from commonwatt.service.own_process import ApiChild, has_own_process

    if not config.is_file():  # a pipe can be read once only
        return None
    try:
        scenario = load_yaml(config, Scenario)
        if not has_own_process(scenario, len(Cluster.of(scenario.nodes))):
            return None
        child = ApiChild()
    except (InputError, OSError):  # whoever reads the configuration for good says so
        return None
    click.get_current_context().call_on_close(child.end)
    return child


def _upgrade_store(config: Path) -> None:
    """Upgrade the store of *config* if it is older; waits for a controller of the earlier version to end."""
    from commonwatt.controlplane.wiring import read_config
    from commonwatt.store.database import Database, address
    from commonwatt.store.migrate import upgrade_when_free

    spec = read_config(config).live
    with naming_file(config):
        database = Database(address(spec.store, config.parent.absolute()))
        try:
            upgrade_when_free(database, print_message)
        finally:
            database.close()


def _app_of(live: Live) -> FastAPI:
    """Return the API of *live* for this process: made before the controller's thread wants its turn as well."""
    with _no_collection(), needing("live"):
        from commonwatt.service.app import make_app
        from commonwatt.service.context import ServiceContext

    supervisor = live.supervisor
    context = ServiceContext(
        live.config, live.folder, live.store, live.maker, supervisor.snapshot, supervisor.wake,
        supervisor.counters.counts, lambda: supervisor.alive,
    )  # fmt: skip
    return make_app(context)


def _api_process(
    live: Live, listening: socket, local: LocalSocket | None, log: tuple[LogFormat, int], begun: ApiChild | None
) -> ApiProcess:  # fmt: skip
    """Return the API of *live* in a process of its own, which is not started."""
    from commonwatt.controlplane.wiring import IDLE_S
    from commonwatt.service.own_process import ApiProcess, ApiSetup

    supervisor = live.supervisor
    setup = ApiSetup(
        live.config, live.folder, live.database.url, IDLE_S, live.maker, supervisor.snapshot(), log,
        listening.fileno(), -1 if local is None else local.listening.fileno(),
    )  # fmt: skip
    return ApiProcess(
        setup, supervisor.wait_for, supervisor.counters.counts, supervisor.wake, lambda: supervisor.alive, begun
    )


def _local_socket(live: Live, path: Path | None) -> LocalSocket | None:
    """Listen on the Unix socket of the configuration, or on *path* instead."""
    from commonwatt.controlplane.identity import socket_path
    from commonwatt.model.errors import InputError
    from commonwatt.service.server import LocalSocket

    config_path = socket_path(live.config, live.folder)
    if config_path is None:
        if path is not None:
            raise InputError("live.server.socket in the configuration, which says who may use it", field="--socket")
        return None
    return LocalSocket(config_path if path is None else path.absolute())


def _stop_services(live: Live) -> None:
    from commonwatt.controlplane.engines import stop_services_of
    from commonwatt.model.units import plural

    stopped = stop_services_of(live.config, live.folder)
    if stopped is not None:
        print_message(f"stopped services: {plural(stopped, 'server')}, the front included")


@contextmanager
def _no_collection() -> Iterator[None]:
    """Import modules without garbage collections, which would visit all that they define again and again."""
    import gc

    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _first_token(live: Live, form: LogFormat) -> None:
    """Create the first operator's token of a new store; it is shown once and not stored."""
    from time import time

    from commonwatt.controlplane.logs import announcement

    operators = [token for token in live.store.tokens() if token["tenant"] is None and token["role"] is None]
    if any(token["revoked_s"] is None and (token["expires_s"] or time() + 1) > time() for token in operators):
        return
    token = live.store.add_token(None, "first operator", time())
    event = "the first operator's token, shown only now"
    print_message(announcement(form, f"{event}: {token}", event, token=token))


_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def check(config: Path, *, as_json: bool) -> None:
    """Check CONFIG and everything that `commonwatt serve` needs: store, engine, power readings, port, clock.

    Prints a line for each check, with advice. Starts and changes nothing. Exit code: 0 all passed, perhaps with
    warnings; 1 a check failed; 2 CONFIG itself is wrong.

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
    with naming_file(config):
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
