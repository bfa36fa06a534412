"""``commonwatt map``: one file per subcommand; what is no subcommand is a problem to solve."""

from __future__ import annotations

from pathlib import Path

import click

from commonwatt.cli.map.evaluate import evaluate
from commonwatt.cli.map.solve import bound_to, solve

__all__ = ["command"]


class _Map(click.Group):
    """A group whose first argument may be a problem file; its options may stand before or after it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            given, _, _ = solve.make_parser(click.Context(solve)).parse_args(list(args))
            problem = given.get("problem")
            if not isinstance(problem, str):
                msg = "Missing argument 'PROBLEM'"
                raise click.UsageError(msg, ctx)
            if problem not in self.commands:
                at = len(args) - 1 - args[::-1].index(problem)
                args = [problem, *args[:at], *args[at + 1 :]]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or bound_to(Path(cmd_name))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        solve.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group(cls=_Map, subcommand_metavar="PROBLEM [OPTIONS]", options_metavar="", no_args_is_help=True)
def command() -> None:
    """Map the jobs of PROBLEM (YAML or JSON) onto its sub-accelerators: which one, and in what order.

    \b
    Examples:
      commonwatt map examples/map.yaml --plot map.png
      commonwatt map examples/map.yaml --algorithm gsharp --budget 2000 --json
      commonwatt map evaluate examples/map.yaml mapping.json
    """


command.add_command(evaluate)
