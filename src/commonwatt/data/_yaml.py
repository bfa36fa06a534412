"""YAML as people mean it: the core schema of YAML 1.2, and no key twice.

PyYAML follows YAML 1.1, where ``off`` is false, ``1e-4`` is text, ``010`` is eight, ``12:30:00`` is 45000 and a date is
no text. Users write ``state: off`` and ``begin: 2017-10-16``.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

__all__ = ["DuplicateKeyError", "parse_yaml"]


class DuplicateKeyError(ValueError):
    """A mapping has a key twice."""

    def __init__(self, key: object, line: int | None) -> None:
        super().__init__(f"{key!r} twice")
        self.key, self.line = key, line


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_object(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401
        try:
            return super().construct_object(node, deep)
        except (KeyError, TypeError, AttributeError, ArithmeticError):  # PyYAML's own, on `!!bool foo`
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"what is no {kind}", node.start_mark) from None

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: ANN401
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                key = self.construct_object(key_node)
                if not isinstance(key, Hashable):
                    break  # it is refused below
                if key in seen:
                    raise DuplicateKeyError(key, key_node.start_mark.line + 1)
                seen.add(key)
        return super().construct_mapping(node, deep)


def _add(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first) or [""])


_add("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_add("int", "[-+]?[0-9]+", "-+0123456789")
_add("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789")
_add("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+.")
_add("null", "~|null|Null|NULL", "~nN")
_add("null", "", "")
_add("merge", "<<", "<")


def _whole(loader: _Loader, node: Any) -> int:  # noqa: ANN401
    return int(loader.construct_scalar(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)


def parse_yaml(text: str) -> Any:  # noqa: ANN401
    """Parse one document. Raises ``yaml.YAMLError``, ``DuplicateKeyError`` or ``RecursionError``."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
