"""A verb with subcommands that is itself a command: ``commonwatt partition PROBLEM`` beside ``partition mig``."""

from __future__ import annotations

import difflib
from pathlib import Path

import click
from click.shell_completion import CompletionItem

__all__ = ["ProblemGroup"]


class ProblemGroup(click.Group):
    """A group whose first argument is a PROBLEM, for ``default``, unless it is the name of a subcommand."""

    default: click.Command  # added first; its name is not shown

    def add_default(self, command: click.Command) -> None:
        """Make *command* the one that a PROBLEM is for."""
        self.default = command
        self.add_command(command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the name of the default command before a PROBLEM, or before options of its own."""
        asks = {"-h", "--help"}
        if args and args[0] not in self.commands and not (len(args) == 1 and args[0] in asks):
            self._refuse_misspelt(ctx, args[0])
            args = [str(self.default.name), *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, ctx: click.Context, first: str) -> None:
        """Fail if *first* is no file, and nearly a subcommand."""
        near = difflib.get_close_matches(first, self._others(), n=1)
        if near and not Path(first).exists():
            ctx.fail(f"No such command or file {first!r} (did you mean {near[0]}?)")

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show how each is called."""
        formatter.write_usage(ctx.command_path, "PROBLEM [OPTIONS]")
        for name in self._others():
            formatter.write_usage(ctx.command_path, f"{name} [OPTIONS] ...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the default command's options, then the subcommands."""
        with click.Context(self.default, info_name=ctx.info_name, parent=ctx.parent) as inner:
            self.default.format_options(inner, formatter)
        with formatter.section("Commands"):
            limit = formatter.width - 6 - max(map(len, self._others()))
            formatter.write_dl([(name, self.commands[name].get_short_help_str(limit)) for name in self._others()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete subcommands, then files; options of the default command."""
        if incomplete.startswith("-"):
            with click.Context(self.default, info_name=ctx.info_name, parent=ctx.parent) as inner:
                return self.default.shell_complete(inner, incomplete)
        near = [name for name in self._others() if name.startswith(incomplete)]
        return [CompletionItem(name) for name in near] or [CompletionItem(incomplete, type="file")]

    def _others(self) -> list[str]:
        return sorted(name for name in self.commands if name != self.default.name)
