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
        if args and args[0].startswith("-") and args[0] not in {*ctx.help_option_names}:
            given, rest, _ = solve.make_parser(ctx).parse_args(list(args))
            problem = given.get("problem")
            if isinstance(problem, str) and problem not in self.commands and not rest:
                args = [problem, *(args[:at] + args[at + 1 :] if (at := _last(args, problem)) >= 0 else args)]
        return super().parse_args(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return super().get_command(ctx, cmd_name) or bound_to(Path(cmd_name))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        solve.format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


def _last(args: list[str], word: str) -> int:
    return max((i for i, arg in enumerate(args) if arg == word), default=-1)


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
