"""``commonwatt completion``."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the script that completes commands, options and names in SHELL.

    \b
    Examples:
      commonwatt completion bash > ~/.local/share/bash-completion/completions/commonwatt
      commonwatt completion zsh > ~/.zfunc/_commonwatt        # a folder in $fpath
      commonwatt completion fish > ~/.config/fish/completions/commonwatt.fish
    """
    from click.shell_completion import get_completion_class

    from commonwatt.cli.root import root

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(root, {}, "commonwatt", "_COMMONWATT_COMPLETE").source())
