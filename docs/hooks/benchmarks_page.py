"""Pages that the repository keeps where its users look for them: benchmarks, contributing, changes."""

from __future__ import annotations

import re
from pathlib import Path


def pages(root: Path) -> dict[str, str]:
    """Return the list of benchmarks."""
    return {"reference/benchmarks.md": _linked(root / "benchmarks" / "README.md", "reference")}


def contributing(root: Path) -> dict[str, str]:
    """Return how to contribute, and the changes."""
    return {
        "contributing/index.md": _linked(root / "CONTRIBUTING.md", "contributing"),
        "contributing/changelog.md": _linked(root / "CHANGELOG.md", "contributing"),
    }


def _linked(path: Path, folder: str) -> str:
    """Return the text at *path* with links to pages of the site as seen from *folder*; others lose their target."""

    def link(match: re.Match[str]) -> str:
        text, target = match.groups()
        if target.startswith(("http", "#")):
            return match.group(0)
        below = target.removeprefix("../").removeprefix("./")
        names = {"CHANGELOG.md": "../contributing/changelog.md", "CONTRIBUTING.md": "../contributing/index.md"}
        below = names.get(below, f"../{below.removeprefix('docs/')}" if below.startswith("docs/") else "")
        if not below:
            return text if text.startswith("`") else f"{text} (`{target}`)"
        return f"[{text}]({below.replace(f'../{folder}/', '')})"

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", link, path.read_text(encoding="utf-8"))
