"""The routes of the REST API, from the OpenAPI document that the service publishes."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from markup import cell


def document() -> dict[str, Any]:
    """Return the OpenAPI document. Routes do not depend on what stands behind them, so nothing does."""
    from commonwatt.service.app import make_app

    return make_app(MagicMock()).openapi()


def text() -> str:
    """Return all routes, resource by resource, as Markdown."""
    groups: dict[str, list[str]] = {}
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            tag = (operation.get("tags") or ["other"])[0]
            groups.setdefault(tag, []).append(_operation(method.upper(), path, operation))
    return "\n\n".join(f"### {tag.capitalize()}\n\n" + "\n\n".join(parts) for tag, parts in groups.items())


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"#### `{method} {path}`", operation.get("description", "")]
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [f"| `{each['name']}` | {each['in']} | {cell(each.get('description', ''))} |" for each in parameters]
        parts.append("| parameter | in | meaning |\n| --- | --- | --- |\n" + "\n".join(rows))
    body = _schema(operation.get("requestBody", {}))
    if body:
        parts.append(f"Body: `{body}`.")
    answers = [
        f"{code} `{_schema(answer)}`" if _schema(answer) else code
        for code, answer in operation["responses"].items()
        if code.startswith("2")
    ]
    refused = [code for code in sorted(operation["responses"]) if not code.startswith("2")]
    refusals = f" Refusals: {', '.join(refused)}." if refused else ""
    parts.append(f"Returns: {', '.join(answers)}.{refusals}")
    return "\n\n".join(part for part in parts if part)


def _schema(answer: dict[str, Any]) -> str:
    for media, content in answer.get("content", {}).items():
        reference = content.get("schema", {}).get("$ref", "")
        return reference.rsplit("/", 1)[-1] or media
    return ""
