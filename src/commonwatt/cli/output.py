"""What verbs share: one JSON document on standard output, everything else on standard error."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["digest", "json_option", "print_json", "say", "seed_option"]

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add ``--json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print exactly one JSON document on standard output.")(
        command
    )


def seed_option(command: F) -> F:
    """Add ``--seed``."""
    return click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of everything random."
    )(command)


def print_json(document: BaseModel | dict[str, Any]) -> None:
    """Print *document*; NaN and infinity never occur in it."""
    data = document if isinstance(document, dict) else document.model_dump(mode="json")
    sys.stdout.write(json.dumps(data, indent=2, allow_nan=False) + "\n")


def say(text: str) -> None:
    """Tell the user something that is not the result."""
    click.echo(text, err=True)


def digest(document: BaseModel) -> str:
    """SHA-256 of a document as validated."""
    text = json.dumps(document.model_dump(mode="json"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
