"""Reference pages of every command, from its Click declaration."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import click
from markup import cell

from commonwatt.cli.root import ProblemGroup, root

FOLDER = "reference/commands"
INTRODUCTION = (
    "`commonwatt COMMAND --help` prints the same. With `--json` a command prints exactly one JSON document on standard "
    "output. Exit codes: 0 done, 1 failed, 2 an input is wrong, 130 interrupted."
)


def pages() -> dict[str, str]:
    """Return a page for each verb, and the list of them."""
    context = click.Context(root, info_name="commonwatt")
    verbs = {name: root.get_command(context, name) for name in root.list_commands(context)}
    rows = [f"| [`{name}`]({name}.md) | {cell(_short(command))} |" for name, command in verbs.items() if command]
    index = [
        "# Commands",
        INTRODUCTION,
        "| command | what it does |\n| --- | --- |\n" + "\n".join(rows),
    ]
    texts = {f"{FOLDER}/index.md": "\n\n".join(index) + "\n"}
    for name, command in verbs.items():
        assert command is not None
        texts[f"{FOLDER}/{name}.md"] = "\n\n".join(_parts(command, name, context, 1)) + "\n"
    return texts


def _parts(command: click.Command, name: str, parent: click.Context, level: int) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=parent)
    yield f"{'#' * level} commonwatt {context.command_path.removeprefix('commonwatt ')}"
    default = command.default if isinstance(command, ProblemGroup) else None
    yield "```text\n" + _usage(command, context) + "\n```"
    yield from _description(command.help or "")
    shown = default or command
    if default is not None and default.help:
        yield from _description(default.help)
    yield from _options(shown, click.Context(shown, info_name=name, parent=parent))
    if isinstance(command, click.Group):
        for below in sorted(command.list_commands(context)):
            inner = command.get_command(context, below)
            if inner is not None and inner is not default and not inner.hidden:
                yield from _parts(inner, below, context, level + 1)


def _usage(command: click.Command, context: click.Context) -> str:
    formatter = context.make_formatter()
    command.format_usage(context, formatter)
    return formatter.getvalue().strip()


def _description(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text; what ``\\b`` marks as preformatted becomes a block of code."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text.split("\f")[0])):
        lines = paragraph.splitlines()
        if lines and lines[0].strip() == "\b":
            title, *rest = lines[1:]
            if rest:
                yield title.strip()
                yield "```sh\n" + inspect.cleandoc("\n".join(["", *rest])) + "\n```"
            else:
                yield title.strip()
        elif lines:
            yield cell(paragraph)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    rows = []
    for parameter in command.get_params(context):
        if not isinstance(parameter, click.Option) or parameter.hidden or "--help" in parameter.opts:
            continue
        record = parameter.get_help_record(context)
        if record is not None:
            rows.append(f"| `{record[0].replace('|', chr(92) + '|')}` | {cell(record[1])} |")
    if rows:
        yield "| option | what it does |\n| --- | --- |\n" + "\n".join(rows)


def _short(command: click.Command) -> str:
    return command.get_short_help_str(200)
