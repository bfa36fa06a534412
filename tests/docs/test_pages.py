"""The tutorials, some guides and the README work as printed, in an empty folder, in order."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from commonwatt.engines.local.shared_devices import stop_services
from tests.docs.pages import ROOT, Step, missing, run, steps_of

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
GUIDES = [ROOT / "docs" / "how-to" / f"{name}.md" for name in ("completion", "fleet", "hardware", "init", "profiling")]
NEEDS = {
    "live-fleet": ("sqlalchemy", "fastapi", "onnx", "onnxruntime", "starlette", "tritonclient"),
    "operator": ("sqlalchemy", "fastapi"),
    "serving-engineer": ("onnx", "onnxruntime", "starlette"),
}


def check(page: Path, folder: Path) -> None:
    """Run *page* and compare what it prints with what it says."""
    steps = steps_of(page)
    try:
        outcome = run(steps, folder)
    finally:
        stop_services(folder / "fleet-state")  # where a page did not come to its end
    last = max(outcome.printed, default=0)
    assert outcome.code == 0, f"{page.name}, line {last}: exit code {outcome.code}\n{outcome.printed.get(last)}"
    for step in steps:
        printed = outcome.printed[step.line]
        assert missing(step.expected, printed) == [], f"{page.name}, line {step.line}:\n{printed}"


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in TUTORIALS if page.name != "index.md"], ids=lambda page: page.stem)
def test_tutorials_run_in_an_empty_folder(page, tmp_path):
    for package in NEEDS.get(page.stem, ()):
        if not find_spec(package):
            pytest.skip(f"{package} is not installed")
    check(page, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_guides_run_in_an_empty_folder(page, tmp_path):
    check(page, tmp_path)


def copy_examples(folder: Path) -> None:
    ignored = shutil.ignore_patterns("models", "*.db*", "*-state")
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=ignored)


@pytest.mark.long
def test_the_demo_runs_in_a_checkout(tmp_path):
    copy_examples(tmp_path)
    check(ROOT / "docs" / "how-to" / "demo.md", tmp_path)


@pytest.mark.long
def test_the_readme_runs_in_a_checkout(tmp_path):
    for package in NEEDS["operator"] + NEEDS["serving-engineer"]:
        if not find_spec(package):
            pytest.skip(f"{package} is not installed")
    copy_examples(tmp_path)
    check(ROOT / "README.md", tmp_path)


def write(folder: Path, text: str) -> Path:
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    return page


def test_steps_are_read(tmp_path):
    page = write(
        tmp_path,
        '# A page\n```yaml title="a.yaml"\nx: 1\n```\n```sh\ncat a.yaml\n```\n```text\nx: 1\n...\n```\n'
        "<!-- test: skip, no reason -->\n```sh\nfalse\n```\n```yaml\nnot: run\n```\n```python\nprint(2)\n```\n",
    )
    assert steps_of(page) == [
        Step(2, "yaml", "a.yaml", "x: 1\n"),
        Step(5, "sh", None, "cat a.yaml\n", ("x: 1",)),
        Step(19, "python", None, "print(2)\n"),
    ]


def test_a_page_is_run_in_one_shell_and_what_it_prints_is_kept(tmp_path):
    page = write(tmp_path, "```sh\nexport A=1\nsleep 60 &\n```\n```python\nimport os\nprint(os.environ['A'])\n```\n")
    outcome = run(steps_of(page), tmp_path)
    assert outcome.code == 0
    assert outcome.printed[5].split() == ["1"]


@pytest.mark.parametrize("text", ["false", "cat nothing.yaml", "true | false"])
def test_a_command_that_fails_is_seen(text, tmp_path):
    page = write(tmp_path, f"```sh\n{text}\n```\n```sh\necho after\n```\n")
    outcome = run(steps_of(page), tmp_path)
    assert outcome.code != 0
    assert list(outcome.printed) == [1]


def test_output_that_differs_is_seen():
    assert missing(("a  b", "c d"), "x a b\nc\nd") == []
    assert missing(("a b", "e"), "a b") == ["e"]
