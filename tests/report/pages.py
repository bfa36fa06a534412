"""Reading a rendered report in tests."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser

HOSTILE = '</script><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">&amp;<b>"\' %{x} $1'


class Page(HTMLParser):
    """Elements, attributes and text of a document; scripts apart."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts[-1] += data
        elif self._inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words)).replace("\N{NO-BREAK SPACE}", " ")

    @property
    def data(self) -> dict:
        return json.loads(unpacked(self.scripts[0]))


def unpacked(script: str) -> str:
    """The text packed in an element."""
    return gzip.decompress(base64.b64decode(script)).decode()


def own_part(text: str) -> str:
    """The document without plotly.js."""
    first, last = text.index('<script type="text/plain" id="plotly"'), text.rindex("<script>")
    return text[:first] + text[last:]
