from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest


@dataclass
class Visit:
    """An open page, and what it complained about or asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(chromium, tmp_path):
    """Open a document from a file, without a network; afterwards nothing may have gone wrong."""
    visits, contexts = [], []

    def open_(text: str, *, width: int = 1400, **options: Any) -> Visit:
        file = tmp_path / f"report{len(visits)}.html"
        file.write_text(text, encoding="utf-8")
        context = chromium.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        context.set_offline(True)
        seen = Visit(context.new_page())
        visits.append(seen)
        seen.page.on("console", lambda message: seen.complaints.append(f"{message.type}: {message.text}"))
        seen.page.on("pageerror", lambda error: seen.complaints.append(f"error: {error}"))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        seen.page.goto(file.as_uri())
        seen.page.wait_for_selector("html[data-drawn=true]", state="attached")
        return seen

    yield open_
    for context in contexts:
        context.close()
    for seen in visits:
        assert seen.complaints == []
        assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert sum(url.startswith("file:") for url in seen.requests) == 1
