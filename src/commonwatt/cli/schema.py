"""What editors and shells read: ``commonwatt schema`` and ``completion``."""

from __future__ import annotations

import csv
import json
import sys

import click

from commonwatt.cli.output import completed_by, print_json

__all__ = ["completion", "schema"]


def _names(ctx: click.Context) -> list[str]:  # noqa: ARG001
    from commonwatt.model.schemas import SCHEMAS

    return sorted(SCHEMAS)


@click.command()
@click.argument("name", required=False, shell_complete=completed_by(_names))
@click.option("--dictionary", is_flag=True, help="Print every field with type, unit, default and meaning, as CSV.")
@click.option("--json", "as_json", is_flag=True, help="With --dictionary: print it as JSON.")
def schema(name: str | None, *, dictionary: bool, as_json: bool) -> None:
    """Print the JSON Schema of the file or result NAME. Without NAME, list them.

    \b
    Example:
      commonwatt schema scenario > scenario.schema.json
    """
    from commonwatt.model.errors import InputError
    from commonwatt.model.names import one_of
    from commonwatt.model.schemas import SCHEMAS
    from commonwatt.model.schemas import dictionary as rows

    if dictionary:
        if as_json:
            print_json({"fields": [row._asdict() for row in rows()]})
            return
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["model", "name", "type", "unit", "default", "meaning"])
        writer.writerows(rows())
        return
    if name is None:
        if as_json:
            print_json({"schemas": list(SCHEMAS)})
        else:
            click.echo("\n".join(SCHEMAS))
        return
    if name not in SCHEMAS:
        raise InputError(one_of(SCHEMAS, name), field="NAME", value=name)
    click.echo(json.dumps(SCHEMAS[name].model_json_schema(), indent=2))


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
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
