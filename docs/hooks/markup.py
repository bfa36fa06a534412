"""Text from docstrings and help texts as Markdown."""

from __future__ import annotations

import re


def cell(text: str) -> str:
    """Return *text* on one line, safe in a table; reStructuredText literals become Markdown's."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("``", "`"))
    plain = [part if k % 2 else part.replace("<", "&lt;").replace("[", "\\[") for k, part in enumerate(parts)]
    return "".join(plain).replace("|", "\\|")
