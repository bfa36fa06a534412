"""``commonwatt check``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from commonwatt.cli.output import blamed_on, digest, json_option, needing, print_json

if TYPE_CHECKING:
    from commonwatt.model.admin_results import CheckLine

__all__ = ["command"]

_COLOURS = {"ok": "green", "warning": "yellow", "failed": "red"}


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@json_option
def command(config: Path, *, as_json: bool) -> None:
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
