"""The subcommands of partition as the root command runs them."""

from unittest import mock

from commonwatt.cli.root import root
from tests.cli.console import Outcome, run


def call(command, *arguments) -> Outcome:
    """Run *command* right below the root command, so that its errors become one line."""
    with mock.patch.object(type(root), "get_command", return_value=command):
        return run(command.name, *arguments)
