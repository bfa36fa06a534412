from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any

import pytest

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--no-first-run",
    "--disable-sync", "--disable-default-apps", "--disable-domain-reliability", "--no-pings", "--disable-extensions",
]  # fmt: skip


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"{reason}; in CI the browser tests must run")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def chromium():
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _missing("playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        _missing("no chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield browser
        browser.close()


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
        seen.page.wait_for_function("document.documentElement.dataset.ready === 'true'")
        return seen

    yield open_
    for context in contexts:
        context.close()
    for seen in visits:
        assert seen.complaints == []
        assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:"))] == []
        assert sum(url.startswith("file:") for url in seen.requests) == 1
