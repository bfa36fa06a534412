"""``commonwatt partition``: PROBLEM itself, and one file per subcommand."""

from __future__ import annotations

import click

from commonwatt.cli.partition.characterize import characterize
from commonwatt.cli.partition.divide import divide
from commonwatt.cli.partition.mig import mig

__all__ = ["command"]


class _ProblemOrVerb(click.Group):
    """A group whose first argument is a PROBLEM unless it is the name of a subcommand."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks = {"-h", "--help"}
        if args and args[0] not in self.commands and not (len(args) == 1 and args[0] in asks):
            args = ["divide", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "PROBLEM [OPTIONS]")
        for name in self.list_commands(ctx):
            if name != "divide":
                formatter.write_usage(ctx.command_path, f"{name} [OPTIONS] ...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with click.Context(divide, info_name=ctx.info_name, parent=ctx.parent) as inner:
            divide.format_options(inner, formatter)
        rest = [(name, self.commands[name].get_short_help_str()) for name in sorted(self.commands) if name != "divide"]
        if rest:
            with formatter.section("Commands"):
                formatter.write_dl(rest)


@click.group(cls=_ProblemOrVerb)
def command() -> None:
    """Choose a configuration of core clusters for tenants, and divide it among them by a Fisher market.

    \b
    Examples:
      commonwatt partition examples/partition.yaml --explain
      commonwatt partition examples/partition.yaml --welfare egalitarian --json
      commonwatt partition mig examples/mig.yaml --plot layouts.png
      commonwatt partition characterize --threads 1,2 -- ./my-program
    """


for _sub in (divide, mig, characterize):
    command.add_command(_sub)
