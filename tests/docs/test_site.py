"""Links and files of the pages are there; the site builds without a warning and loads nothing from a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path

import pytest

from commonwatt.model.schemas import SCHEMAS
from tests.docs.pages import ROOT

FORMS = ROOT / "docs" / "data" / "pages"  # their links are those of the pages made from them
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("docs/**/*.md")} - set(FORMS.glob("*.md"))
)
FOLDERS = ("src", "benchmarks", "tests", "examples", "docs")
# What a built page loads by itself, as against links a reader follows.
LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}


def written(page: Path) -> str:
    """Return the text of *page* without its fences."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def files_named(page: Path) -> set[str]:
    """Return the Python files that *page* names in code font; with their package, where a table has it in its head."""
    text = written(page)
    package = re.search(r"in `(src/commonwatt/\w+)/`", text)
    named = set(re.findall(r"`([\w/]+\.py)(?::[^`]*)?`", text)) - {"shared_device.py"}
    return {f"{package[1]}/{name}" if package and "/" not in name else name for name in named}


@pytest.fixture(scope="module")
def files() -> list[str]:
    return [str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]


def test_python_files_the_pages_name_are_there(files):
    gone = {
        f"{page.relative_to(ROOT)}: {name}"
        for page in PAGES
        if page.name != "CONTRIBUTING.md"  # names files to be written
        for name in files_named(page)
        if not any(f"/{path}".endswith(f"/{name}") or path == name for path in files)
    }
    assert gone == set()


def test_links_between_files_of_the_repository_lead_somewhere():
    generated = {"commands", "files", "results", "python", "benchmarks.md", "contributing"}
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", written(page)):
            below = (page.parent / target).resolve()
            made = {part for part in Path(target).parts if part in generated}
            if not target.startswith("http") and not made and not below.exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_the_pages_name_nothing_of_this_machine():
    own = {ROOT.parent, Path.home(), Path(tempfile.gettempdir())} - {Path("/")}
    found = [f"{page.name}: {folder}" for page in PAGES for folder in own if f"{folder}/" in page.read_text()]
    assert found == []


class _Loads(HTMLParser):
    """Addresses that a page makes a browser load."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADS and values.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(values.get(LOADS[tag]) or "")


def loads(html: str) -> list[str]:
    parser = _Loads()
    parser.feed(html)
    return parser.found


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings", "fastapi"):
        if not find_spec(package):
            pytest.skip(f"{package} is not installed: pip install 'commonwatt[docs]'")
    built = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", built],
        cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return built


@pytest.mark.long
def test_the_site_builds_and_loads_nothing_from_the_network(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(SCHEMAS)
    outside = {f"{page.name}: {address}" for page in pages for address in loads(page.read_text()) if "//" in address}
    styles = {
        f"{page.name}: {part}"
        for page in site.rglob("*.css")
        for part in re.findall(r"url\(\W*https?:[^)]*", page.read_text())
    }
    assert outside | styles == set()


@pytest.mark.long
@pytest.mark.slow
def test_the_reference_has_every_schema_command_and_route(site):
    for name, model in SCHEMAS.items():
        (page,) = [path for kind in ("files", "results") for path in site.glob(f"reference/{kind}/{name}.html")]
        text = page.read_text()
        assert all(f"<code>{info.alias or field}</code>" in text for field, info in model.model_fields.items()), name
    from commonwatt.cli.root import VERBS

    assert {path.stem for path in (site / "reference" / "commands").glob("*.html")} == {"index", *VERBS}
    assert "/api/v1/jobs/{job}/explain" in (site / "reference" / "rest-api.html").read_text()
    assert "commonwatt submit" in (site / "search" / "search_index.json").read_text()


def test_what_a_page_loads_is_seen():
    html = (
        '<link rel="stylesheet" href="https://a/b.css"><a href="https://c"></a>'
        '<img src="x.png"><link rel="canonical" href="//d">'
    )
    assert loads(html) == ["https://a/b.css", "x.png"]
