"""MkDocs hook: adds the pages that are generated from the code, and puts them into the navigation."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import benchmarks_page
import command_pages
import python_pages
import rest_page
import schema_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]


@cache
def _generated() -> dict[str, dict[str, str]]:
    """Return the text of each generated page by navigation entry and path; a section's index comes first."""
    return {
        "<commands>": command_pages.pages(),
        "<files>": schema_pages.file_pages(),
        "<results>": schema_pages.result_pages(),
        "<python>": python_pages.pages(),
        "<benchmarks>": benchmarks_page.pages(ROOT),
        "<contributing>": benchmarks_page.contributing(ROOT),
    }


def _decisions() -> list[str]:
    return ["adr/index.md", *(f"adr/{path.name}" for path in sorted((ROOT / "docs" / "adr").glob("[0-9]*.md")))]


def _filled(nav: Any, pages: dict[str, list[str]]) -> Any:  # noqa: ANN401
    if isinstance(nav, str):
        paths = pages.get(nav, [nav])
        return paths[0] if len(paths) == 1 else paths
    if isinstance(nav, dict):
        return {title: _filled(below, pages) for title, below in nav.items()}
    return [_filled(below, pages) for below in nav]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace each ``<name>`` of the navigation by its pages."""
    pages = {name: list(texts) for name, texts in _generated().items()} | {"<decisions>": _decisions()}
    config.nav = _filled(config.nav, pages)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for texts in _generated().values():
        for path, text in texts.items():
            files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Fill in what a written page takes from the code."""
    if "<!-- generated: openapi -->" in markdown:
        return markdown.replace("<!-- generated: openapi -->", rest_page.text())
    return markdown
