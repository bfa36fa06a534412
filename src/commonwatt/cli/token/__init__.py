"""``commonwatt token``: one file per subcommand."""

from __future__ import annotations

import click

from commonwatt.cli.token.add import add
from commonwatt.cli.token.list import list_
from commonwatt.cli.token.revoke import revoke

__all__ = ["command"]


@click.group()
def command() -> None:
    """Make, list and revoke tokens, by the control plane (operators) or on its store (--config).

    \b
    Examples:
      commonwatt token add --operator --config live.yaml
      commonwatt token add --tenant vision --label "Ann's laptop"
      commonwatt token revoke 3
    """


for _sub in (add, list_, revoke):
    command.add_command(_sub)
