"""``commonwatt timeslice serve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from commonwatt.cli.output import blamed_on, json_option, print_json, say, seed_option

if TYPE_CHECKING:
    from commonwatt.devices.session import DeviceSession
    from commonwatt.model.timeslice_file import TimesliceConfig
    from commonwatt.model.timeslice_results import TimesliceServeResult
    from commonwatt.serving.server import Addresses

__all__ = ["serve"]


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Load everything, show what would be served, and exit.")
@seed_option
@json_option
def serve(config: Path, *, check: bool, seed: int, as_json: bool) -> None:
    """Serve the tenants' models of CONFIG over the Open Inference Protocol v2 (REST and gRPC).

    SIGTERM or Ctrl-C stops the server when the requests it has accepted are answered; a second one stops it at once.

    \b
    Example:
      commonwatt timeslice serve examples/server.yaml
    """
    import os

    from commonwatt.data.files import load_yaml
    from commonwatt.devices.session import open_session
    from commonwatt.model.timeslice_file import TimesliceConfig
    from commonwatt.serving.keys import resolve_keys
    from commonwatt.serving.optional import wanted

    for package in ("starlette", "uvicorn", "grpc", "tritonclient.grpc", "prometheus_client"):
        wanted(package)
    file = load_yaml(config, TimesliceConfig)
    with blamed_on(config):
        if file.device.kind == "simulated":
            _refuse_simulated()
        keys = resolve_keys(file, os.environ)
        session = open_session(file, config.parent)
    from commonwatt.serving.sharing import SharingBackend

    backend = SharingBackend(session)
    document = _document(file, session, seed)
    if check:
        backend.close()
        _show(document, None, as_json=as_json)
        return
    import asyncio

    from commonwatt.serving.server import serve as serve_it

    backend.start()
    try:
        with blamed_on(config):
            asyncio.run(
                serve_it(backend, keys, file.server, on_ready=lambda where: _show(document, where, as_json=as_json))
            )
    finally:
        backend.close()
    say("stopped: every request that was accepted has been answered or refused")


def _refuse_simulated() -> NoReturn:
    from commonwatt.model.errors import InputError

    raise InputError("cpu or cuda, as a simulated device answers nothing", field="device.kind", value="simulated")


def _document(file: TimesliceConfig, session: DeviceSession, seed: int) -> TimesliceServeResult:
    from commonwatt import __version__
    from commonwatt.cli.output import digest
    from commonwatt.model.timeslice_results import ServedModelResult, TimesliceServeResult

    return TimesliceServeResult(
        version=__version__,
        seed=seed,
        input_digest=digest(file.without_keys()),
        device=session.device.name,
        enforcement=session.device.enforcement,
        policy=file.policy,
        phi=file.phi,
        rest=None,
        grpc=None,
        models=tuple(
            ServedModelResult(
                tenant=tenant, model=model, segments=len(loaded.model.step_names),
                longest_segment_s=max(loaded.model.step_times_s), time_s=loaded.powers.time_s,
                power_w=loaded.powers.mean_w, power_source=session.power_source(tenant),
            )
            for (tenant, model), loaded in session.loaded.items()
        ),
    )  # fmt: skip


def _show(document: TimesliceServeResult, where: Addresses | None, *, as_json: bool) -> None:
    import sys

    if where is not None:
        document = document.model_copy(update={"rest": where.rest, "grpc": where.grpc})
    if as_json:
        print_json(document)
        sys.stdout.flush()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{document.policy}, phi {document.phi:g}, on {document.device}")
    for heading in ("tenant", "model", "segments", "longest, ms", "inference, ms", "power, W", "power is"):
        table.add_column(heading, justify="left" if heading in {"tenant", "model"} else "right", overflow="fold")
    for m in document.models:
        table.add_row(
            m.tenant, m.model, str(m.segments), f"{1e3 * m.longest_segment_s:.3g}", f"{1e3 * m.time_s:.3g}",
            f"{m.power_w:.3g}", m.power_source,
        )  # fmt: skip
    Console().print(table)
    if where is not None:
        say(f"serving: REST on {where.rest}" + (f", gRPC on {where.grpc}" if where.grpc else ""))
